#include "environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.h"

enum {
    MOST_ENTRIES = 96,          /* 64 limits and the other names, with room */
    STORE_BYTES = 64 * 1024,    /* 64 CU lists are 16 KiB at most */
    SOURCE_BYTES = 4 * 1024 * 1024 /* twice what Linux gives arguments and environment */
};

struct name {
    const char *text;
    bool prefix;     /* and any ending */
    bool of_share;   /* a source that has it carries a share */
    bool free;       /* the own environment may name it where no other source does */
    bool forbidden;  /* never set */
};

static const struct name names[] = {
    {.text = "HIP_DEVICE_MEMORY_LIMIT_", .prefix = true, .of_share = true},
    {.text = "HIP_DEVICE_MEMORY_LIMIT", .of_share = true},
    {.text = "HSA_CU_MASK", .of_share = true},
    {.text = "ROCR_VISIBLE_DEVICES"},
    {.text = "HIP_DEVICE_MEMORY_SHARED_CACHE"},
    {.text = "HIP_OVERSUBSCRIBE"},
    {.text = "LIBAMVGPU_FAIL_OPEN"},
    {.text = "AMD_TASK_PRIORITY", .free = true},
    {.text = "LD_AUDIT", .free = true},
    {.text = "HSA_CU_MASK_SKIP_INIT", .forbidden = true},
};

static struct {
    char store[STORE_BYTES]; /* "NAME=value\0" one after the other */
    size_t stored;
    const char *entries[MOST_ENTRIES];
    size_t count;
    bool share; /* some source carries one */
    bool cut;   /* something did not fit */
    bool oversubscribed;
    enum task_priority priority;
} known; /* all zero, so that it costs nothing until it is written */

static const struct name *name_of(const char *text, size_t length)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t wanted = strlen(names[i].text);
        if ((names[i].prefix ? length > wanted : length == wanted) &&
            memcmp(names[i].text, text, wanted) == 0)
            return &names[i];
    }
    return NULL;
}

static const char *find(const char *name, size_t length)
{
    for (size_t i = 0; i < known.count; i++)
        if (strncmp(known.entries[i], name, length) == 0 && known.entries[i][length] == '=')
            return known.entries[i];
    return NULL;
}

/* Keeps one "NAME=value" of `length` characters, unless an earlier source has the name. */
static void keep(const char *item, size_t length)
{
    const char *equals = memchr(item, '=', length);
    size_t name_length = equals ? (size_t)(equals - item) : length;
    const struct name *name = equals ? name_of(item, name_length) : NULL;
    if (!name || name->forbidden || find(item, name_length))
        return;
    if (known.count == MOST_ENTRIES || known.stored + length + 1 > STORE_BYTES) {
        known.cut = true;
        return;
    }
    char *entry = known.store + known.stored;
    memcpy(entry, item, length);
    entry[length] = '\0';
    known.stored += length + 1;
    known.entries[known.count++] = entry;
    known.share = known.share || name->of_share;
}

static void keep_all(const char *text, size_t length, char separator)
{
    for (size_t start = 0, end; start < length; start = end + 1) {
        const char *stop = memchr(text + start, separator, length - start);
        end = stop ? (size_t)(stop - text) : length;
        keep(text + start, end - start);
    }
}

/* Whether one of the items belongs to a share. */
static bool carries_share(const char *text, size_t length)
{
    for (size_t start = 0, end; start < length; start = end + 1) {
        const char *stop = memchr(text + start, '\0', length - start);
        end = stop ? (size_t)(stop - text) : length;
        const char *equals = memchr(text + start, '=', end - start);
        const struct name *name =
            equals ? name_of(text + start, (size_t)(equals - text) - start) : NULL;
        if (name && name->of_share)
            return true;
    }
    return false;
}

/* Reads a file whole into memory of SOURCE_BYTES; the length, or -1 with errno. */
static ssize_t read_file(const char *path, char *text)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return -1;
    ssize_t length = 0, part;
    while (length < SOURCE_BYTES && (part = read(file, text + length, SOURCE_BYTES - (size_t)length)))
        if (part > 0)
            length += part;
        else if (errno != EINTR)
            break;
    int error = errno;
    close(file);
    if (part != 0) {
        errno = length == SOURCE_BYTES ? EFBIG : error;
        return -1;
    }
    return length;
}

/* The values file, if it is there. False when it is and tells nothing. */
static bool read_share(char *text, bool *there)
{
    ssize_t length = read_file(SHARE_VALUES, text);
    *there = length >= 0 || (errno != ENOENT && errno != ENOTDIR);
    if (length > 0)
        keep_all(text, (size_t)length, '\n');
    if (!*there || known.count)
        return true;
    log_line(LOG_ERROR,
             "%s: expected lines NAME=value of the share, found none; device memory is refused. "
             "Restart the container.",
             SHARE_VALUES);
    return false;
}

/* The environment PID 1 was started with, if it is the container's: in a shared PID namespace
 * PID 1 is another's and carries no share. Another user's is not to be read. */
static bool read_first_process(char *text)
{
    ssize_t length = read_file("/proc/1/environ", text);
    if (length <= 0 || !carries_share(text, (size_t)length))
        return false;
    keep_all(text, (size_t)length, '\0');
    return true;
}

static void read_own(char **own, bool alone)
{
    for (char **entry = own; entry && *entry; entry++) {
        const struct name *name = name_of(*entry, strcspn(*entry, "="));
        if (name && (alone || name->free))
            keep(*entry, strlen(*entry));
    }
}

/* Puts the held values into the array, and takes out what may not be there. The kernel laid it
 * with no room, so that what is missing cannot be added; getenv and exec know it all the same. */
static void correct(char **own)
{
    char **to = own;
    for (char **from = own; from && *from; from++) {
        size_t length = strcspn(*from, "=");
        const char *entry = environment_entry(*from, length);
        if (!environment_holds(*from, length))
            *to++ = *from;
        else if (entry)
            /* Nobody writes through the pointers of an environment. */
            *to++ = (char *)(uintptr_t)entry;
    }
    if (to)
        *to = NULL;
}

static enum task_priority read_priority(const char *value)
{
    if (!value || !*value || value[strspn(value, "0123456789")])
        return TASK_PRIORITY_UNSET;
    return value[strspn(value, "0")] ? TASK_PRIORITY_LOW : TASK_PRIORITY_HIGH;
}

bool environment_begin(char **own)
{
    char *text = mmap(NULL, SOURCE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text == MAP_FAILED) {
        log_line(LOG_ERROR, "expected memory to read the values of the share, found none; device "
                            "memory is refused");
        return false;
    }
    /* A huge page would take longer to clear than all the rest does. */
    madvise(text, SOURCE_BYTES, MADV_NOHUGEPAGE);
    bool there;
    bool good = read_share(text, &there);
    bool first = read_first_process(text);
    munmap(text, SOURCE_BYTES);
    read_own(own, !there && !first);
    if (good && known.cut)
        log_line(LOG_ERROR, "expected at most %d values of the share in %d bytes, found more; device "
                            "memory is refused",
                 MOST_ENTRIES, STORE_BYTES);
    if (good && !there && !known.share)
        log_line(LOG_ERROR,
                 "expected the values of a share in %s, the environment of PID 1 or the own "
                 "environment, found none; device memory is refused. Start the process with the "
                 "environment of its container.",
                 SHARE_VALUES);
    const char *scaled = environment_value("HIP_OVERSUBSCRIBE");
    known.oversubscribed = scaled && (strcmp(scaled, "1") == 0 || strcasecmp(scaled, "true") == 0);
    known.priority = read_priority(environment_value("AMD_TASK_PRIORITY"));
    correct(own);
    return good && !known.cut && (there || known.share);
}

const char *environment_value(const char *name)
{
    const char *entry = find(name, strlen(name));
    return entry ? entry + strlen(name) + 1 : NULL;
}

bool environment_oversubscribed(void)
{
    return known.oversubscribed;
}

enum task_priority environment_task_priority(void)
{
    return known.priority;
}

bool environment_holds(const char *name, size_t length)
{
    const struct name *found = name_of(name, length);
    return found && (found->forbidden || find(name, length));
}

const char *environment_entry(const char *name, size_t length)
{
    return find(name, length);
}

bool environment_accepts(const char *name, size_t length, const char *value)
{
    static const char list[] = "LD_AUDIT";
    const char *own = environment_value(list);
    return length == sizeof list - 1 && memcmp(name, list, length) == 0 && own && value &&
           strstr(value, own);
}

const char *const *environment_entries(size_t *count)
{
    *count = known.count;
    return known.entries;
}
