#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "limits.h"
#include "log.h"
#include "memory.h"

enum {
    HEADER_LOCK_MILLISECONDS = 2000, /* a holder needs a few at most, unless it was stopped */
    FIRST_NAP_NANOSECONDS = 1000000, /* between looks at a lock whose holder was killed */
    LONGEST_NAP_NANOSECONDS = 128000000,
    LOOK_NANOSECONDS = 10000000, /* the dead are looked for at most this often by reports */
    SETTLE_ATTEMPTS = 4,
    LOWEST_FILE = 100 /* away from the numbers that programs close and reuse */
};

/* ---- the kernel's view of a process ---- */

/* fstat by number: the libc symbol is GLIBC_2.33. */
static bool file_status(int file, struct stat *status)
{
    return syscall(SYS_fstat, file, status) == 0;
}

/* Writes `before`, a process number and `after`, and the end of the string. */
static void name_with_pid(char *text, const char *before, uint32_t pid, const char *after)
{
    char digits[12];
    size_t count = 0;
    char *at = stpcpy(text, before);
    do
        digits[count++] = (char)('0' + pid % 10);
    while (pid /= 10);
    while (count)
        *at++ = digits[--count];
    strcpy(at, after);
}

/* Start time of a process, or 0 where there is none or it is not to be seen. */
static uint64_t start_time_of(uint32_t pid)
{
    enum { FIELDS_AFTER_NAME = 19 }; /* field 22, counted from the state, which is field 3 */
    char path[64], text[1024];
    name_with_pid(path, "/proc/", pid, "/stat");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    /* The name may hold spaces and brackets: the last bracket ends it. */
    char *at = strrchr(text, ')');
    if (!at)
        return 0;
    at += 2;
    for (int field = 0; field < FIELDS_AFTER_NAME; field++) {
        at = strchr(at, ' ');
        if (!at)
            return 0;
        at++;
    }
    uint64_t time = 0;
    return number_read(at, strcspn(at, " \n"), UINT64_MAX, &time) ? time : 0;
}

/* Inode number of this process's PID namespace, 0 where /proc does not tell. */
static uint32_t own_pid_namespace(void)
{
    char text[64]; /* pid:[4026531836] */
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text - 1);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    char *start = strchr(text, '[');
    uint64_t number = 0;
    if (!start || !number_read(start + 1, strcspn(start + 1, "]"), UINT32_MAX, &number))
        return 0;
    return (uint32_t)number;
}

/* Whether one line of /proc/<pid>/maps is a mapping of the region. */
static bool line_maps(const struct usage *region, const char *line)
{
    /* address permissions offset device inode path */
    const char *at = line;
    for (int field = 0; field < 4; field++) {
        at = strchr(at, ' ');
        if (!at)
            return false;
        at++;
    }
    uint64_t inode = 0;
    size_t digits = strcspn(at, " ");
    if (number_read(at, digits, UINT64_MAX, &inode) && inode == region->inode)
        return true;
    at += digits;
    at += strspn(at, " ");
    return *at && strcmp(at, region->path) == 0;
}

/* Whether a process has the region mapped; true where that is not to be seen. */
static bool maps_region(const struct usage *region, uint32_t pid)
{
    char path[64], text[4096];
    size_t kept = 0;
    bool found = false;
    name_with_pid(path, "/proc/", pid, "/maps");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return true;
    for (;;) {
        ssize_t length = read(file, text + kept, sizeof text - 1 - kept);
        if (length <= 0) {
            found = length < 0 && errno != ESRCH;
            break;
        }
        kept += (size_t)length;
        text[kept] = '\0';
        char *line = text, *end;
        while (!found && (end = strchr(line, '\n'))) {
            *end = '\0';
            found = line_maps(region, line);
            line = end + 1;
        }
        if (found)
            break;
        kept = strlen(line);
        if (kept == sizeof text - 1)
            kept = 0; /* a path of 4 KiB is not the region's */
        memmove(text, line, kept);
    }
    close(file);
    return found;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- locks in the file ---- */

/* Sets (F_WRLCK) or drops (F_UNLCK) the lock on one byte, without waiting. */
static bool byte_lock(const struct usage *region, short type, uint64_t offset)
{
    struct flock range = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = 1};
    return fcntl(region->file, F_SETLK, &range) == 0;
}

static uint64_t slot_offset(unsigned slot)
{
    return REGION_HEADER_BYTES + (uint64_t)slot * sizeof(struct region_slot);
}

static bool header_valid(const struct usage *region)
{
    const struct region_header *header = region->header;
    return header->magic == REGION_MAGIC && header->version == REGION_VERSION &&
           header->devices == region->devices && header->slots == REGION_SLOTS;
}

/* Sleeps until the lock on the header was given back since it was so `turns` times, or a nap is
 * over. */
static void wait_for_turn(const struct usage *region, uint32_t turns, long nap)
{
    struct timespec time = {.tv_nsec = nap};
    syscall(SYS_futex, &region->header->turns, FUTEX_WAIT, turns, &time, NULL, 0);
}

/* The lock on the header's first byte; its holder changes slots. Waited for as long as it goes
 * from hand to hand, be there a thousand who wait; but not without end for one holder, who may
 * have been stopped by a debugger. */
static bool header_lock(const struct usage *region)
{
    uint32_t turns = atomic_load(&region->header->turns);
    uint64_t since = now();
    long nap = FIRST_NAP_NANOSECONDS;
    while (!byte_lock(region, F_WRLCK, 0)) {
        if (errno != EAGAIN && errno != EACCES) {
            log_line(LOG_ERROR,
                     "usage region %s: expected a lock on it, found error %d of fcntl; allocations "
                     "that need it are refused. Put it on a filesystem that has locks.",
                     region->path, errno);
            return false;
        }
        uint32_t seen = atomic_load(&region->header->turns);
        if (seen != turns) {
            turns = seen;
            since = now();
        } else if (now() - since > HEADER_LOCK_MILLISECONDS * UINT64_C(1000000)) {
            log_line(LOG_ERROR,
                     "usage region %s: expected its lock within %d ms, found it held; allocations "
                     "that need it are refused. Look for a stopped process of this container.",
                     region->path, HEADER_LOCK_MILLISECONDS);
            return false;
        }
        wait_for_turn(region, turns, nap);
        nap = nap < LONGEST_NAP_NANOSECONDS ? nap * 2 : nap;
    }
    return true;
}

static void header_unlock(const struct usage *region)
{
    byte_lock(region, F_UNLCK, 0);
    if (!header_valid(region))
        return; /* not ours to write to */
    atomic_fetch_add(&region->header->turns, 1);
    syscall(SYS_futex, &region->header->turns, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---- opening ---- */

/* What can come of opening or mapping; strerror may allocate. */
static const char *reason(int error)
{
    switch (error) {
    case ENOENT:
        return "no such file or folder";
    case EACCES:
    case EPERM:
        return "permission denied";
    case EROFS:
        return "a read-only filesystem";
    case ELOOP:
        return "a symbolic link";
    case EISDIR:
        return "a folder";
    case EMFILE:
    case ENFILE:
        return "too many open files";
    case ENXIO:
        return "a FIFO or socket";
    default:
        return "an error of open or mmap";
    }
}

static void refused(const char *path, const char *expected, const char *found)
{
    log_line(LOG_ERROR,
             "usage region %s: expected %s, found %s; device memory is refused. Restart the "
             "container; LIBAMVGPU_FAIL_OPEN=1 in its values would allow memory without a count.",
             path, expected, found);
}

/* Lays an empty region under its final name in one step, so that nobody sees half of one. */
static void lay(const char *path)
{
    char partial[512];
    if (strlen(path) + 32 > sizeof partial)
        return;
    name_with_pid(stpcpy(partial, path), ".new", (uint32_t)getpid(), "");
    unlink(partial);
    int file = open(partial, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return; /* opening what is not there will say so */
    /* All users of the container share the account, whatever the umask of the first. */
    if (fchmod(file, 0666) == 0 && ftruncate(file, (off_t)REGION_SIZE(REGION_DEVICES)) == 0) {
        int ignored = link(partial, path); /* another process may have been first */
        (void)ignored;
    }
    close(file);
    unlink(partial);
}

/* Opens the file away from the low numbers; -1 with errno. */
static int open_file(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return -1;
    int higher = fcntl(file, F_DUPFD_CLOEXEC, LOWEST_FILE);
    if (higher < 0)
        return file;
    close(file);
    return higher;
}

/* Number of devices of a region of `size` bytes, 0 for a size that no region has. */
static unsigned devices_of_size(uint64_t size)
{
    uint64_t least = REGION_SIZE(1), step = REGION_SIZE(2) - REGION_SIZE(1);
    if (size < least || size > REGION_SIZE(REGION_DEVICES) || (size - least) % step)
        return 0;
    return (unsigned)((size - least) / step) + 1;
}

static bool all_zero(const struct usage *region)
{
    const uint64_t *words = (const uint64_t *)(const void *)region->header;
    for (uint64_t i = 0; i < region->size / sizeof *words; i++)
        if (words[i])
            return false;
    return true;
}

/* Fills the header of a region that nobody used yet; says what is wrong with any other. */
static bool initialise(struct usage *region, const uint64_t *limits)
{
    struct region_header *header = region->header;
    if (header_valid(region))
        return true;
    if (header->magic == REGION_MAGIC && header->version != REGION_VERSION) {
        refused(region->path, "layout version 1", "another version");
        return false;
    }
    if (!all_zero(region)) {
        refused(region->path, "a region or a file of zeros", "a damaged header");
        return false;
    }
    header->version = REGION_VERSION;
    header->devices = region->devices;
    header->slots = REGION_SLOTS;
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        header->limit[device] = limits[device];
    __atomic_store_n(&header->magic, REGION_MAGIC, __ATOMIC_RELEASE); /* a reader may not lock */
    return true;
}

static bool map_region(struct usage *region, const uint64_t *limits)
{
    struct stat status;
    if (!file_status(region->file, &status) || !S_ISREG(status.st_mode)) {
        refused(region->path, "a regular file", "something else");
        return false;
    }
    region->size = (uint64_t)status.st_size;
    region->filesystem = status.st_dev;
    region->inode = status.st_ino;
    region->devices = devices_of_size(region->size);
    if (!region->devices) {
        refused(region->path, "4096 + 1024 * (16 + 8 * devices) bytes", "another size");
        return false;
    }
    void *start =
        mmap(NULL, region->size, PROT_READ | PROT_WRITE, MAP_SHARED, region->file, 0);
    if (start == MAP_FAILED) {
        refused(region->path, "a file that can be mapped", reason(errno));
        return false;
    }
    region->header = start;
    region->slots = (struct region_slot *)(void *)((char *)start + REGION_HEADER_BYTES);
    region->used = (_Atomic uint64_t *)(void *)(region->slots + REGION_SLOTS);
    region->process = memory_of_process(sizeof *region->process);
    if (!region->process) {
        refused(region->path, "memory that a forked child does not see (Linux 4.14)", "none");
        return false;
    }
    region->pid_namespace = own_pid_namespace();
    if (!header_lock(region))
        return false;
    bool valid = initialise(region, limits);
    header_unlock(region);
    return valid;
}

bool usage_open(struct usage *region, const char *path, const uint64_t *limits)
{
    *region = (struct usage){.path = path, .file = open_file(path)};
    if (region->file < 0 && errno == ENOENT) {
        lay(path);
        region->file = open_file(path);
    }
    if (region->file < 0) {
        refused(path, "a file that can be opened for writing", reason(errno));
        return false;
    }
    if (map_region(region, limits))
        return true;
    usage_close(region);
    return false;
}

void usage_close(struct usage *region)
{
    if (region->header)
        munmap(region->header, region->size);
    memory_return(region->process, sizeof *region->process);
    if (region->file >= 0)
        close(region->file);
    *region = (struct usage){.file = -1};
}

/* The program may have closed our file and be using its number: open it anew, and take the lock
 * on the own slot anew, which the kernel dropped. */
static bool keep_file(struct usage *region)
{
    struct stat status;
    if (file_status(region->file, &status) && status.st_ino == region->inode &&
        status.st_dev == region->filesystem)
        return true;
    int file = open_file(region->path);
    if (file < 0)
        return false;
    if (!file_status(file, &status) || status.st_ino != region->inode ||
        status.st_dev != region->filesystem) {
        close(file);
        return false;
    }
    region->file = file;
    if (region->process->attached)
        byte_lock(region, F_WRLCK, slot_offset(region->process->slot));
    return true;
}

/* ---- slots ---- */

static _Atomic uint64_t *used_of(const struct usage *region, unsigned device, unsigned slot)
{
    return &region->used[(uint64_t)device * REGION_SLOTS + slot];
}

static void empty_slot(struct usage *region, unsigned slot)
{
    for (unsigned device = 0; device < region->devices; device++)
        atomic_store(used_of(region, device, slot), 0);
    region->slots[slot].start_time = 0;
    region->slots[slot].pid_namespace = 0;
    atomic_store(&region->slots[slot].pid, 0);
}

/* Whether the process that wrote a slot whose lock is free lives all the same: it may have closed
 * our file, which drops the lock. A process that has replaced its image by exec keeps its number
 * and start time, but not the mapping. Of another PID namespace only the lock can tell. */
static bool lives_unlocked(const struct usage *region, const struct region_slot *slot)
{
    uint32_t pid = slot->pid;
    if (!region->pid_namespace || slot->pid_namespace != region->pid_namespace)
        return false;
    if (pid == (uint32_t)getpid() || pid > INT32_MAX)
        return false; /* this very process before its exec, or damage */
    if (kill((pid_t)pid, 0) && errno == ESRCH)
        return false;
    uint64_t started = start_time_of(pid);
    if (started && started != slot->start_time)
        return false;
    return maps_region(region, pid);
}

/* Empties the slots of processes that are gone. Needs both locks. */
static void reclaim(struct usage *region)
{
    const struct usage_process *process = region->process;
    unsigned highest = 0, count = 0;
    for (unsigned slot = 0; slot < REGION_SLOTS; slot++) {
        if (!region->slots[slot].pid)
            continue;
        if (process->attached && slot == process->slot) {
            highest = slot + 1;
            continue;
        }
        if (!byte_lock(region, F_WRLCK, slot_offset(slot))) {
            highest = slot + 1;
            continue;
        }
        if (lives_unlocked(region, &region->slots[slot])) {
            highest = slot + 1;
        } else {
            empty_slot(region, slot);
            count++;
        }
        byte_lock(region, F_UNLCK, slot_offset(slot));
    }
    atomic_store(&region->header->high_water, highest);
    atomic_store(&region->process->looked, now());
    if (count)
        log_line(LOG_INFO, "usage region %s: took back what %u ended processes held",
                 region->path, count);
}

/* Claims a free slot; the lock on it is the claim. Needs both locks. */
static bool claim(struct usage *region)
{
    struct usage_process *process = region->process;
    for (unsigned slot = 0; slot < REGION_SLOTS; slot++) {
        if (region->slots[slot].pid || !byte_lock(region, F_WRLCK, slot_offset(slot)))
            continue;
        empty_slot(region, slot);
        process->slot = slot;
        process->pid = (uint32_t)getpid();
        region->slots[slot].start_time = start_time_of(process->pid);
        region->slots[slot].pid_namespace = region->pid_namespace;
        atomic_store(&region->slots[slot].pid, process->pid);
        if (region->header->high_water < slot + 1)
            atomic_store(&region->header->high_water, slot + 1);
        log_line(LOG_DEBUG, "usage region %s: slot %u", region->path, slot);
        return true;
    }
    return false;
}

bool usage_attach(struct usage *region)
{
    struct usage_process *process = region->process;
    if (usage_attached(region))
        return true;
    lock_take(&process->slow);
    bool attached = process->attached;
    if (!attached && keep_file(region) && header_lock(region)) {
        region->pid_namespace = own_pid_namespace(); /* a clone may live in a new one */
        reclaim(region);
        attached = claim(region);
        header_unlock(region);
        if (!attached)
            log_line(LOG_ERROR,
                     "usage region %s: expected a free slot, found %u live processes; device "
                     "memory is refused to this one. End some of them.",
                     region->path, REGION_SLOTS);
        atomic_store_explicit(&process->attached, attached, memory_order_release);
    }
    lock_give(&process->slow);
    return attached;
}

/* ---- the account ---- */

/* Bytes of all slots; UINT64_MAX when the numbers cannot be true. */
static uint64_t sum(const struct usage *region, unsigned device)
{
    const _Atomic uint64_t *used = used_of(region, device, 0);
    unsigned end = region->header->high_water;
    uint64_t total = 0;
    if (end > REGION_SLOTS)
        return UINT64_MAX;
    for (unsigned slot = 0; slot < end; slot++)
        if (__builtin_add_overflow(total, atomic_load(&used[slot]), &total))
            return UINT64_MAX;
    return total;
}

/* Whether the own slot is still what this process made it. */
static bool own_slot_intact(const struct usage *region)
{
    const struct usage_process *process = region->process;
    return region->slots[process->slot].pid == process->pid &&
           region->header->high_water > process->slot;
}

static bool fits(uint64_t total, uint64_t bytes, uint64_t limit)
{
    return total <= limit && bytes <= limit - total;
}

/* Add first, look after: of requests at the same time every one sees all the others, so that
 * never more than fits is granted. The look before it keeps a request that cannot fit from
 * troubling those that do. */
static bool try_reserve(struct usage *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    if (!fits(sum(region, device), bytes, limit))
        return false;
    _Atomic uint64_t *own = used_of(region, device, region->process->slot);
    atomic_fetch_add(own, bytes);
    if (sum(region, device) <= limit)
        return true;
    atomic_fetch_sub(own, bytes);
    return false;
}

/* At the limit: one process at a time, after the dead have given back what they held. Those that
 * tried at the same time and backed out queue here too, so that no two refuse each other. */
static bool settle(struct usage *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    bool granted = false;
    lock_take(&region->process->slow);
    if (keep_file(region) && header_lock(region)) {
        atomic_store(&region->header->contended, 1);
        reclaim(region);
        for (int attempt = 0; attempt < SETTLE_ATTEMPTS && !granted; attempt++) {
            if (attempt)
                sched_yield();
            granted = try_reserve(region, device, bytes, limit);
        }
        atomic_store(&region->header->contended, 0);
        header_unlock(region);
    }
    lock_give(&region->process->slow);
    return granted;
}

bool usage_reserve(struct usage *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    if (bytes > limit)
        return false;
    if (!own_slot_intact(region)) {
        log_line(LOG_ERROR,
                 "usage region %s: expected process %u in slot %u, found another; the region is "
                 "damaged and device memory is refused. Restart the container.",
                 region->path, region->process->pid, region->process->slot);
        return false;
    }
    if (!atomic_load_explicit(&region->header->contended, memory_order_relaxed) &&
        try_reserve(region, device, bytes, limit))
        return true;
    return settle(region, device, bytes, limit);
}

void usage_release(struct usage *region, unsigned device, uint64_t bytes)
{
    atomic_fetch_sub(used_of(region, device, region->process->slot), bytes);
}

uint64_t usage_used(struct usage *region, unsigned device)
{
    struct usage_process *process = region->process;
    uint64_t total = sum(region, device);
    /* What others hold may be held by the dead; asking the kernel costs microseconds. */
    if (total == atomic_load(used_of(region, device, process->slot)))
        return total;
    if (now() - atomic_load(&process->looked) < LOOK_NANOSECONDS)
        return total;
    lock_take(&process->slow);
    if (keep_file(region) && header_lock(region)) {
        reclaim(region);
        header_unlock(region);
    }
    lock_give(&process->slow);
    return sum(region, device);
}
