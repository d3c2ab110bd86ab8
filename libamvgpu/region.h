/* The usage region: how the processes of one share tell each other what they hold.
 *
 * Public and versioned. region.md is its documentation; whoever reads a region from outside the
 * container (a monitor on the node) includes this header, or mirrors it, and treats every byte
 * that it reads as hostile: the file is writable by the container.
 *
 *   0                    struct region_header, padded to REGION_HEADER_BYTES
 *   REGION_HEADER_BYTES  struct region_slot slots[REGION_SLOTS]
 *   after the slots      uint64_t used[devices][REGION_SLOTS], in bytes of device memory
 *
 * All numbers are little-endian and naturally aligned. A file of the right size that holds
 * nothing but zeros is a region that no process has used yet.
 */
#ifndef AMVGPU_REGION_H
#define AMVGPU_REGION_H

#include <stdint.h>

#define REGION_MAGIC UINT64_C(0x0100555047564d41) /* the bytes "AMVGPU\0\1" */
#define REGION_VERSION 1u
#define REGION_SLOTS 1024u  /* processes at a time */
#define REGION_DEVICES 64u  /* devices at most */
#define REGION_HEADER_BYTES 4096u
#define REGION_NO_LIMIT UINT64_MAX

struct region_header {
    uint64_t magic;   /* REGION_MAGIC, written last */
    uint32_t version; /* REGION_VERSION; another number is another layout */
    uint32_t devices; /* columns of the used table, 1 to REGION_DEVICES; follows from the size */
    uint32_t slots;   /* REGION_SLOTS */
    /* One more than the highest slot in use: how far a sum has to look. */
    _Atomic uint32_t high_water;
    /* Not zero while a process settles who gets the last bytes: others then queue for the lock. */
    _Atomic uint32_t contended;
    /* How often the lock on the header was given back: who waits for it sleeps on this number. */
    _Atomic uint32_t turns;
    /* Limits as the first process read them, REGION_NO_LIMIT for none. To be shown, not trusted:
     * every process enforces the limits of its own trusted values. */
    uint64_t limit[REGION_DEVICES];
};

/* A slot is held as long as its process holds the write lock (fcntl F_SETLK) on the slot's first
 * byte in the file: the kernel drops that lock when the process ends, however it ends and
 * whatever PID namespace it lived in. */
struct region_slot {
    uint64_t start_time;    /* field 22 of /proc/<pid>/stat, in clock ticks since boot */
    _Atomic uint32_t pid;   /* in its own PID namespace; 0 is a free slot */
    uint32_t pid_namespace; /* inode number of /proc/<pid>/ns/pid */
};

/* Bytes of a region for `devices` devices: 4096 + 1024 * (16 + 8 * devices). */
#define REGION_SIZE(devices) \
    ((uint64_t)REGION_HEADER_BYTES + \
     (uint64_t)REGION_SLOTS * (sizeof(struct region_slot) + sizeof(uint64_t) * (devices)))

_Static_assert(sizeof(struct region_header) <= REGION_HEADER_BYTES, "the header fits its page");
_Static_assert(sizeof(struct region_slot) == 16, "a slot is part of the layout");
_Static_assert(REGION_SIZE(1) == 28672, "a region for one device is 28 KiB");

#endif
