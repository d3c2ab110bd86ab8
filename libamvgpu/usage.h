/* One process's hold on a usage region (the layout is region.h): opening, its slot, who is alive.
 *
 * The file is writable by every process of the container. Nothing read from it is used as an
 * index or a length; its size and the number of devices are taken once, when it is opened.
 */
#ifndef AMVGPU_USAGE_H
#define AMVGPU_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"
#include "region.h"

/* What is true of one process only; a forked child reads zeros and attaches by itself. */
struct usage_process {
    _Atomic unsigned attached;
    unsigned slot;
    uint32_t pid;
    _Atomic uint64_t looked; /* when the dead were last looked for, in ns of a coarse clock */
    spinlock slow;               /* one thread at a time attaches, reclaims or settles */
};

struct usage {
    const char *path;
    int file; /* kept open: the lock on the slot goes with it */
    uint64_t size;
    uint64_t filesystem, inode;
    unsigned devices;
    uint32_t pid_namespace;
    struct region_header *header;
    struct region_slot *slots;
    _Atomic uint64_t *used;
    struct usage_process *process;
};

/* Opens the region at `path`, which must stay valid; creates one for REGION_DEVICES devices where
 * no file is. `limits` has REGION_DEVICES entries and goes into a header that is still empty.
 * On failure logs what was wrong and answers false. */
bool usage_open(struct usage *region, const char *path, const uint64_t *limits);

void usage_close(struct usage *region);

/* Takes a slot for this process where it has none; false when none can be had. */
bool usage_attach(struct usage *region);

static inline bool usage_attached(const struct usage *region)
{
    return atomic_load_explicit(&region->process->attached, memory_order_acquire);
}

/* Adds `bytes` to what this process holds of `device` (below region->devices) if all processes
 * together then stay within `limit`. The region must be attached. */
bool usage_reserve(struct usage *region, unsigned device, uint64_t bytes, uint64_t limit);

void usage_release(struct usage *region, unsigned device, uint64_t bytes);

/* Bytes that all live processes hold of `device`. */
uint64_t usage_used(struct usage *region, unsigned device);

#endif
