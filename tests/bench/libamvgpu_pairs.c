/* Times pairs of hipMalloc and hipFree, or calls of hipMemGetInfo, in this process; prints
 * nanoseconds of elapsed time and of processor time for one.
 *
 *   pairs bare|mutex|info COUNT [FILE]
 *
 * `mutex` is the yardstick: an account in FILE that all processes share under a robust mutex, with
 * one number for each process, summed at each request.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

extern int hipInit(unsigned);
extern int hipMalloc(void **, size_t);
extern int hipFree(void *);
extern int hipMemGetInfo(size_t *, size_t *);

enum { SLOTS = 1024, BYTES = 4096 };

struct account {
    uint64_t ready;
    pthread_mutex_t mutex;
    uint64_t limit;
    uint32_t high, unused;
    uint64_t used[SLOTS];
};

static struct account *account;
static unsigned slot;

static void lock(void)
{
    if (pthread_mutex_lock(&account->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&account->mutex);
}

static void open_account(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    int first = file >= 0;
    if (!first)
        file = open(path, O_RDWR);
    if (ftruncate(file, sizeof *account))
        abort();
    account = mmap(NULL, sizeof *account, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (first) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&account->mutex, &attributes);
        account->limit = UINT64_C(1) << 40;
        __atomic_store_n(&account->ready, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&account->ready, __ATOMIC_ACQUIRE))
        ;
    lock();
    slot = account->high++;
    pthread_mutex_unlock(&account->mutex);
}

static int reserve(void)
{
    uint64_t sum = BYTES;
    lock();
    for (unsigned i = 0; i < account->high; i++)
        sum += account->used[i];
    int fits = sum <= account->limit;
    if (fits)
        account->used[slot] += BYTES;
    pthread_mutex_unlock(&account->mutex);
    return fits;
}

static void release(void)
{
    lock();
    account->used[slot] -= BYTES;
    pthread_mutex_unlock(&account->mutex);
}

static uint64_t time_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void one(int mutex, int info)
{
    void *pointer;
    size_t free_bytes, total;
    if (info) {
        if (hipMemGetInfo(&free_bytes, &total))
            abort();
        return;
    }
    if (mutex && !reserve())
        abort();
    if (hipMalloc(&pointer, BYTES) || hipFree(pointer))
        abort();
    if (mutex)
        release();
}

int main(int count, char **arguments)
{
    int mutex = strcmp(arguments[1], "mutex") == 0, info = strcmp(arguments[1], "info") == 0;
    unsigned long pairs = strtoul(arguments[2], NULL, 10);
    char byte;
    if (mutex)
        open_account(arguments[3]);
    hipInit(0);
    for (int i = 0; i < 1000; i++)
        one(mutex, info);
    printf("ready\n");
    fflush(stdout);
    if (read(STDIN_FILENO, &byte, 1) != 1) /* all processes begin at once */
        return 1;
    uint64_t elapsed = time_of(CLOCK_MONOTONIC), used = time_of(CLOCK_PROCESS_CPUTIME_ID);
    for (unsigned long i = 0; i < pairs; i++)
        one(mutex, info);
    used = time_of(CLOCK_PROCESS_CPUTIME_ID) - used;
    elapsed = time_of(CLOCK_MONOTONIC) - elapsed;
    printf("%.2f %.2f\n", (double)elapsed / (double)pairs, (double)used / (double)pairs);
    return 0;
}
