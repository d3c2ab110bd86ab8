/* The ledger of pointers: what each allocation of this process took, so that its release gives
 * back just that. A forked child starts with an empty one.
 */
#ifndef AMVGPU_POINTERS_H
#define AMVGPU_POINTERS_H

#include <stdbool.h>
#include <stdint.h>

enum pointer_kind {
    POINTER_POOL,    /* address from an HSA memory pool or region */
    POINTER_HANDLE,  /* handle of physical memory, counted by its holders */
    POINTER_MAPPING, /* address at which a handle is mapped; `bytes` is the handle */
    POINTER_MANAGED  /* address from hipMallocManaged */
};

struct holding {
    uint64_t bytes;
    unsigned device;
};

/* Enters a key, held once. An entry that is there already was freed in a way nobody saw: it comes
 * back in `displaced`, else `displaced->bytes` is 0. False when there is no memory for it. */
bool pointers_add(enum pointer_kind kind, uint64_t key, struct holding holding,
                  struct holding *displaced);

/* One more holder; false for a key that is not there. */
bool pointers_retain(enum pointer_kind kind, uint64_t key);

/* One holder less; true with the holding when that was the last and the entry is gone. */
bool pointers_drop(enum pointer_kind kind, uint64_t key, struct holding *holding);

/* Whether there is any managed memory: most programs have none, and need no search at a free. */
bool pointers_any_managed(void);

/* Takes out some entry of a kind and device; false when there is none. */
bool pointers_take_any(enum pointer_kind kind, unsigned device, struct holding *holding);

#endif
