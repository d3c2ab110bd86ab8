/* Feeds the parts of the library that read what others wrote with damage, under sanitizers.
 *
 *   fuzz region FILE ROUNDS SEED       a usage region of every kind of content and size
 *   fuzz values FILE ROUNDS SEED       the values file and the environment of a process
 *   fuzz limits ROUNDS SEED            numbers, held against strtoull
 *   fuzz pointers ROUNDS SEED          the ledger, held against a plain array; and forks
 *   fuzz threads FILE ROUNDS SEED      account and ledger from eight threads at once
 *   fuzz pair FILE ROUNDS SEED         two processes ask at the same moment for what one can have
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../account.h"
#include "../environment.h"
#include "../limits.h"
#include "../log.h"
#include "../pointers.h"
#include "../usage.h"

static uint64_t state;

static uint64_t next_of(uint64_t *at)
{
    *at ^= *at << 13;
    *at ^= *at >> 7;
    *at ^= *at << 17;
    return *at;
}

static uint64_t next(void)
{
    return next_of(&state);
}

static uint64_t below(uint64_t bound)
{
    return next() % bound;
}

static void write_file(const char *path, const void *content, size_t length)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert(file >= 0);
    assert(write(file, content, length) == (ssize_t)length);
    close(file);
}

/* Numbers that are at the edges of something. */
static uint64_t edge(void)
{
    static const uint64_t edges[] = {0,          1,          2,           63,         64,
                                     1023,       1024,       1025,        UINT32_MAX, INT32_MAX,
                                     UINT64_MAX, INT64_MAX,  UINT64_MAX / 2 + 1, 4096, 28672};
    uint64_t number = edges[below(sizeof edges / sizeof *edges)];
    return below(4) ? number : next();
}

/* ---- the region ---- */

enum { MOST_BYTES = 36864 }; /* two devices */

static size_t make_region(unsigned char *content)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 20480, 28671, 28672, 28673, 36864};
    size_t size = below(3) ? REGION_SIZE(1 + below(2)) : sizes[below(9)];
    memset(content, 0, MOST_BYTES);
    struct region_header *header = (struct region_header *)content;
    if (below(8)) {
        header->magic = REGION_MAGIC;
        header->version = REGION_VERSION;
        header->devices = size == REGION_SIZE(2) ? 2 : 1;
        header->slots = REGION_SLOTS;
    }
    for (uint64_t count = below(20); count; count--) {
        uint64_t at = below(4) ? below(4) * 4096 + below(64) * 8 : below(MOST_BYTES / 8) * 8;
        uint64_t number = edge();
        if (at == 0 && below(8))
            continue; /* mostly keep the magic */
        memcpy(content + at, &number, below(2) ? 8 : 4);
    }
    return size;
}

static void fuzz_region(const char *path, uint64_t rounds)
{
    static unsigned char content[MOST_BYTES];
    static uint64_t limits[REGION_DEVICES];
    enum { LIMIT = 1 << 20 };
    uint64_t opened = 0, granted = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        struct usage region;
        write_file(path, content, make_region(content));
        if (!usage_open(&region, path, limits))
            continue;
        opened++;
        if (usage_attach(&region)) {
            for (unsigned device = 0; device < region.devices; device++) {
                assert(!usage_reserve(&region, device, LIMIT + 1, LIMIT));
                assert(!usage_reserve(&region, device, UINT64_MAX, LIMIT));
                if (usage_reserve(&region, device, 4096, LIMIT)) {
                    granted++;
                    assert(!usage_reserve(&region, device, LIMIT, LIMIT));
                    usage_release(&region, device, 4096);
                }
                usage_used(&region, device);
                /* And while it is in use. */
                atomic_store(&region.header->high_water, (uint32_t)edge());
                atomic_store(&region.used[below(2 * REGION_SLOTS) % (REGION_SLOTS * region.devices)],
                             edge());
                assert(!usage_reserve(&region, device, LIMIT + 1, LIMIT));
                usage_reserve(&region, device, 4096, LIMIT);
                usage_used(&region, device);
            }
        }
        usage_close(&region);
    }
    printf("%lu opened, %lu granted\n", opened, granted);
    assert(opened > rounds / 20 && granted > rounds / 50);
}

/* ---- values ---- */

static size_t make_text(char *text, size_t most, char separator)
{
    static const char *const pieces[] = {
        "HIP_DEVICE_MEMORY_LIMIT", "HIP_DEVICE_MEMORY_LIMIT_", "_0", "_63", "_64", "HSA_CU_MASK",
        "ROCR_VISIBLE_DEVICES", "LD_AUDIT", "HSA_CU_MASK_SKIP_INIT", "AMD_TASK_PRIORITY", "=",
        "=", "=", "1", "g", "0:0-3", "HIP_OVERSUBSCRIBE", "LIBAMVGPU_FAIL_OPEN", "\xff\xfe", " "};
    size_t length = 0;
    for (uint64_t count = below(300); count; count--) {
        const char *piece = pieces[below(sizeof pieces / sizeof *pieces)];
        uint64_t times = below(50) ? 1 : below(3000);
        while (times-- && length + strlen(piece) + 2 < most)
            length = (size_t)(stpcpy(text + length, piece) - text);
        if (below(3) == 0 && length + 2 < most)
            text[length++] = below(20) ? separator : (char)next();
    }
    return length;
}

static void one_set_of_values(const char *path)
{
    static char text[200000], file[200000];
    static char *own[512];
    size_t count = 0, length = make_text(text, sizeof text, '\0');
    text[length] = '\0';
    for (size_t at = 0; at < length && count < 500; at += strlen(text + at) + 1)
        own[count++] = text + at;
    unlink(path);
    if (below(2))
        write_file(path, file, make_text(file, sizeof file, '\n'));
    bool known = environment_begin(own);
    for (char **entry = own; *entry; entry++) {
        size_t name = strcspn(*entry, "=");
        assert(strncmp(*entry, "HSA_CU_MASK_SKIP_INIT=", 22) != 0);
        if (environment_holds(*entry, name))
            assert(strcmp(*entry, environment_entry(*entry, name)) == 0);
    }
    static uint64_t limits[REGION_DEVICES];
    const char *limit = environment_value("HIP_DEVICE_MEMORY_LIMIT");
    if (limit)
        limit_read(limit, &limits[0]);
    environment_oversubscribed();
    environment_task_priority();
    size_t held;
    const char *const *entries = environment_entries(&held);
    assert(!known || held > 0);
    for (size_t i = 0; i < held; i++)
        assert(strchr(entries[i], '='));
}

/* The library reads its values once, so that each round is a process. */
static void fuzz_values(const char *path, uint64_t rounds)
{
    for (uint64_t round = 0; round < rounds; round++) {
        next();
        int status;
        pid_t child = fork();
        if (child == 0) {
            state += round;
            one_set_of_values(path);
            _exit(0);
        }
        assert(waitpid(child, &status, 0) == child);
        if (status)
            exit(1);
    }
}

static void fuzz_limits(uint64_t rounds)
{
    static const char characters[] = "0123456789kKmMgGtT -+.x";
    for (uint64_t round = 0; round < rounds; round++) {
        char text[32] = "";
        uint64_t bytes = 0, length = below(24);
        for (uint64_t i = 0; i < length; i++)
            text[i] = characters[below(below(4) ? 10 : sizeof characters)];
        bool read = limit_read(text, &bytes);
        /* By the C library: only digits, then at most one unit, and no overflow. */
        char *end;
        errno = 0;
        unsigned long long number = strtoull(text, &end, 10);
        static const char units[] = "kmgt";
        const char *unit = *end ? strchr(units, *end | 0x20) : NULL;
        unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
        bool good = text[0] >= '0' && text[0] <= '9' && errno == 0 &&
                    (*end == '\0' || (unit && end[1] == '\0')) && number <= UINT64_MAX >> shift;
        assert(read == good);
        assert(!read || bytes == (uint64_t)number << shift);
    }
}

/* ---- the ledger ---- */

enum { KEYS = 3000 };

static void fuzz_pointers(uint64_t rounds)
{
    static struct {
        uint64_t bytes;
        unsigned holders;
    } model[2][KEYS];
    static const enum pointer_kind kinds[] = {POINTER_POOL, POINTER_MANAGED};
    struct holding holding, displaced;
    for (uint64_t round = 0; round < rounds; round++) {
        unsigned kind = (unsigned)below(2);
        uint64_t at = below(KEYS), key = (at + 1) << 12;
        switch (below(4)) {
        case 0:
        case 1:
            holding = (struct holding){1 + below(1 << 20), (unsigned)kind};
            assert(pointers_add(kinds[kind], key, holding, &displaced));
            assert(displaced.bytes == model[kind][at].bytes);
            model[kind][at].bytes = holding.bytes;
            model[kind][at].holders = 1;
            break;
        case 2:
            assert(pointers_retain(kinds[kind], key) == (model[kind][at].holders > 0));
            model[kind][at].holders += model[kind][at].holders > 0;
            break;
        default:
            if (pointers_drop(kinds[kind], key, &holding)) {
                assert(model[kind][at].holders == 1 && holding.bytes == model[kind][at].bytes);
                assert(holding.device == kind);
                model[kind][at].bytes = 0;
                model[kind][at].holders = 0;
            } else if (model[kind][at].holders) {
                assert(--model[kind][at].holders > 0);
            }
        }
    }
    uint64_t there = 0, taken = 0;
    for (uint64_t at = 0; at < KEYS; at++)
        there += model[1][at].holders > 0;
    assert(pointers_any_managed() == (there > 0));
    while (pointers_take_any(POINTER_MANAGED, 1, &holding))
        taken++;
    assert(taken == there && !pointers_any_managed());
    pid_t child = fork();
    if (child == 0) /* a child knows none of it */
        _exit(pointers_drop(POINTER_POOL, 1 << 12, &holding) ||
              pointers_retain(POINTER_POOL, 1 << 12));
    int status;
    waitpid(child, &status, 0);
    assert(status == 0);
}

/* A lock that a parent's thread holds at a fork: the child takes it over, and the parent's own
 * threads still wait for each other. */
static void fuzz_fork(void)
{
    static spinlock held;
    int status;
    lock_take_inherited(&held);
    pid_t child = fork();
    if (child == 0) {
        alarm(5);
        lock_take_inherited(&held);
        lock_give(&held);
        lock_take_inherited(&held);
        _exit(0);
    }
    waitpid(child, &status, 0);
    assert(status == 0);
    assert(held == getpid());
    lock_give(&held);
}

/* ---- threads ---- */

enum { THREADS = 8, LIMIT_BYTES = 1 << 20 };

static _Atomic int64_t outstanding;
static uint64_t rounds_of_each;

static void *work(void *number)
{
    uint64_t own = (uintptr_t)number * 7919 + 1, granted = 0;
    for (uint64_t round = 0; round < rounds_of_each; round++) {
        /* Some that fit many times, some of which no two fit. */
        uint64_t most = (uintptr_t)number % 2 ? LIMIT_BYTES / 6 : LIMIT_BYTES / 2;
        uint64_t least = (uintptr_t)number % 2 ? 1 : LIMIT_BYTES / 2 + 1;
        uint64_t bytes = least + next_of(&own) % (most - 1), key = own | 1;
        struct holding holding = {bytes, 0}, displaced;
        if (!account_reserve(0, bytes))
            continue;
        granted++;
        int64_t sum = atomic_fetch_add(&outstanding, (int64_t)bytes) + (int64_t)bytes;
        assert(sum <= LIMIT_BYTES);
        assert(pointers_add(POINTER_POOL, key, holding, &displaced));
        assert(pointers_drop(POINTER_POOL, key, &holding) && holding.bytes == bytes);
        atomic_fetch_sub(&outstanding, (int64_t)bytes);
        account_release(0, bytes);
    }
    return (void *)(uintptr_t)granted;
}

static void fuzz_threads(const char *path, uint64_t rounds)
{
    static uint64_t limits[REGION_DEVICES] = {LIMIT_BYTES};
    static unsigned char content[REGION_SIZE(1)];
    pthread_t threads[THREADS];
    uint64_t granted = 0;
    write_file(path, content, sizeof content);
    account_begin(limits, path, false);
    rounds_of_each = rounds;
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        granted += (uintptr_t)result;
    }
    assert(granted > rounds);
    assert(account_left(0) == LIMIT_BYTES);
}

/* ---- two at the same moment ---- */

struct meeting {
    _Atomic unsigned arrived, turn, granted;
};

/* Waits for the other; spinning, so that both go on at once. */
static void meet(struct meeting *meeting, unsigned *turn)
{
    unsigned next_turn = ++*turn;
    if (atomic_fetch_add(&meeting->arrived, 1) % 2)
        atomic_store(&meeting->turn, next_turn);
    for (unsigned spins = 0; meeting->turn != next_turn; spins++)
        if (spins > 10000)
            sched_yield(); /* the other is not running */
}

static void ask_together(struct meeting *meeting, uint64_t rounds, bool counts)
{
    enum { MORE_THAN_HALF = LIMIT_BYTES / 2 + 1 };
    unsigned turn = 0;
    account_left(0); /* opens the region and takes a slot */
    for (uint64_t round = 0; round < rounds; round++) {
        meet(meeting, &turn);
        bool granted = account_reserve(0, MORE_THAN_HALF);
        meeting->granted += granted;
        meet(meeting, &turn);
        if (counts && meeting->granted != 1) {
            fprintf(stderr, "round %lu: %u of two were granted\n", round, meeting->granted);
            exit(1);
        }
        meet(meeting, &turn);
        if (granted)
            account_release(0, MORE_THAN_HALF);
        if (counts)
            meeting->granted = 0;
    }
}

static void fuzz_pair(const char *path, uint64_t rounds)
{
    static uint64_t limits[REGION_DEVICES] = {LIMIT_BYTES};
    static unsigned char content[REGION_SIZE(1)];
    struct meeting *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    write_file(path, content, sizeof content);
    account_begin(limits, path, false);
    pid_t child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* or it would wait for ever */
    ask_together(meeting, rounds, child != 0);
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
}

int main(int count, char **arguments)
{
    const char *what = arguments[1];
    bool file = strcmp(what, "limits") != 0 && strcmp(what, "pointers") != 0;
    const char *path = file ? arguments[2] : NULL;
    uint64_t rounds = strtoull(arguments[count - 2], NULL, 10);
    state = strtoull(arguments[count - 1], NULL, 10) * 2654435761u + 88172645463325252u;
    log_choose_level("0");
    if (strcmp(what, "region") == 0)
        fuzz_region(path, rounds);
    else if (strcmp(what, "values") == 0)
        fuzz_values(path, rounds);
    else if (strcmp(what, "limits") == 0)
        fuzz_limits(rounds);
    else if (strcmp(what, "pointers") == 0)
        fuzz_pointers(rounds), fuzz_fork();
    else if (strcmp(what, "pair") == 0)
        fuzz_pair(path, rounds);
    else
        fuzz_threads(path, rounds);
    return 0;
}
