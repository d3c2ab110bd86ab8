#include "devices.h"

#include <stdatomic.h>
#include <stddef.h>

#include "lock.h"
#include "log.h"
#include "region.h"

/* 64 GPUs with an agent, four pools and four regions each fill an eighth of it, per copy of
 * ROCr. Entries are never taken out: a handle that comes again is entered again. */
enum { CAPACITY = 8192 };

struct entry {
    _Atomic uint64_t key; /* 0 is free */
    _Atomic int device;
};

static struct {
    spinlock writing;
    unsigned count;
    struct entry entries[CAPACITY];
    struct pci_address addresses[REGION_DEVICES];
    bool known[REGION_DEVICES];
} devices;

static _Atomic unsigned watching; /* threads that do; thread-local storage costs time */
static _Thread_local int last_query;

/* Handles of different kinds may be equal numbers; they are addresses or small. */
static uint64_t key_of(enum handle_kind kind, uint64_t handle)
{
    return (handle << 2 | (uint64_t)kind) + 1;
}

static struct entry *find(uint64_t key)
{
    uint64_t at = (key * UINT64_C(0x9E3779B97F4A7C15)) >> 51; /* 13 bits */
    for (;; at++) {
        struct entry *entry = &devices.entries[at % CAPACITY];
        uint64_t there = atomic_load_explicit(&entry->key, memory_order_acquire);
        if (there == key || there == 0)
            return entry;
    }
}

void devices_enter(enum handle_kind kind, uint64_t handle, int device)
{
    uint64_t key = key_of(kind, handle);
    lock_take_inherited(&devices.writing);
    struct entry *entry = find(key);
    if (entry->key) {
        atomic_store(&entry->device, device);
    } else if (devices.count < CAPACITY / 2) {
        atomic_store(&entry->device, device);
        atomic_store_explicit(&entry->key, key, memory_order_release);
        devices.count++;
    } else {
        log_line(LOG_ERROR,
                 "expected at most %d handles of agents, pools and regions, found more; memory of "
                 "the others is refused. Restart the process.",
                 CAPACITY / 2);
    }
    lock_give(&devices.writing);
}

void devices_enter_address(unsigned device, struct pci_address address)
{
    if (device >= REGION_DEVICES)
        return;
    lock_take_inherited(&devices.writing);
    devices.addresses[device] = address;
    devices.known[device] = true;
    lock_give(&devices.writing);
}

int devices_of(enum handle_kind kind, uint64_t handle)
{
    const struct entry *entry = find(key_of(kind, handle));
    return entry->key ? entry->device : DEVICE_UNKNOWN;
}

int devices_at(struct pci_address address)
{
    int found = DEVICE_UNKNOWN;
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        if (!devices.known[device] || devices.addresses[device].domain != address.domain ||
            (devices.addresses[device].location & 0xffff) != address.location)
            continue;
        if (found != DEVICE_UNKNOWN)
            return DEVICE_UNKNOWN;
        found = (int)device;
    }
    return found;
}

void devices_watch_queries(void)
{
    last_query = DEVICE_UNKNOWN;
    watching++;
}

void devices_saw_query(int device)
{
    if (watching)
        last_query = device;
}

int devices_last_query(void)
{
    watching--;
    return last_query;
}
