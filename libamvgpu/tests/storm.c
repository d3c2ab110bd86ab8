/* Threads that allocate and free at random through HIP until stdin closes, or for ever. Prints
 * how many requests were granted and refused; exits with 1 if a call fails in any other way. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern int hipMalloc(void **, size_t);
extern int hipFree(void *);

enum { OUT_OF_MEMORY = 2, HELD = 16 };

static atomic_bool stop;
static atomic_ulong granted, refused, failed;
static size_t largest;

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *work(void *seed)
{
    uint64_t state = (uintptr_t)seed * 2654435761u + (uint64_t)getpid() + 1;
    void *held[HELD] = {0};
    while (!stop) {
        void **slot = &held[next(&state) % HELD];
        if (*slot) {
            failed += hipFree(*slot) != 0;
            *slot = NULL;
            continue;
        }
        int status = hipMalloc(slot, 1 + next(&state) % largest);
        granted += status == 0;
        refused += status == OUT_OF_MEMORY;
        failed += status != 0 && status != OUT_OF_MEMORY;
        if (status)
            *slot = NULL;
    }
    for (int i = 0; i < HELD; i++)
        if (held[i])
            failed += hipFree(held[i]) != 0;
    return NULL;
}

int main(int count, char **arguments)
{
    int threads = atoi(arguments[1]);
    pthread_t thread[64];
    char byte;
    largest = strtoul(arguments[2], NULL, 10);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1));
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    stop = true;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("%lu %lu %lu\n", granted, refused, failed);
    return failed != 0;
}
