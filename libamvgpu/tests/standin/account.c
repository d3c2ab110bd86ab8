/* The stand-in's own account.
 *
 * With STANDIN_ACCOUNT it is a file that an observer reads while processes run: a counter of
 * slots taken, then per process { uint32 pid, uint32 0, uint64 done, uint64 begun,
 * uint64 bytes[MOST_GPUS] }. A slot is never reused; the bytes of a process that has ended are free, as they
 * are on a GPU. Who reads `done` of all, then the bytes, then `begun` of all, and finds begun equal
 * to done, has seen all of them as they were at one moment.
 */
#include "standin.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS = 4096 };

struct slot {
    uint32_t pid;
    uint32_t unused;
    _Atomic uint64_t done, begun; /* changes */
    _Atomic uint64_t bytes[MOST_GPUS];
};

struct account {
    _Atomic uint64_t taken;
    struct slot slots[SLOTS];
};

static struct slot private_slot;

static struct slot *shared_slot(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, sizeof(struct account)))
        abort();
    struct account *account =
        mmap(NULL, sizeof *account, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (account == MAP_FAILED)
        abort();
    close(file);
    uint64_t index = atomic_fetch_add(&account->taken, 1);
    if (index >= SLOTS)
        abort();
    return &account->slots[index];
}

/* The slot of this process; a forked child takes its own. */
static struct slot *own_slot(void)
{
    static struct slot *_Atomic slot;
    static _Atomic int owner;
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    int self = getpid();
    if (owner == self)
        return slot;
    while (atomic_flag_test_and_set(&busy))
        ;
    if (owner != self) {
        const char *path = getenv("STANDIN_ACCOUNT");
        slot = path ? shared_slot(path) : &private_slot;
        slot->pid = (uint32_t)self;
        for (unsigned gpu = 0; gpu < MOST_GPUS; gpu++)
            slot->bytes[gpu] = 0;
        slot->begun = slot->done = 0;
        owner = self;
    }
    atomic_flag_clear(&busy);
    return slot;
}

/* Adds to what is held; the sum. */
static uint64_t change(struct slot *slot, uint64_t agent, uint64_t bytes)
{
    slot->begun++;
    uint64_t sum = slot->bytes[agent - FIRST_GPU_AGENT] += bytes;
    slot->done++;
    return sum;
}

bool account_take(uint64_t agent, size_t bytes)
{
    struct slot *slot = own_slot();
    if (bytes <= settings()->vram && change(slot, agent, bytes) <= settings()->vram)
        return true;
    if (bytes <= settings()->vram)
        change(slot, agent, -(uint64_t)bytes);
    return false;
}

void account_give(uint64_t agent, size_t bytes)
{
    change(own_slot(), agent, -(uint64_t)bytes);
}

uint64_t account_free(uint64_t agent)
{
    return settings()->vram - own_slot()->bytes[agent - FIRST_GPU_AGENT];
}
