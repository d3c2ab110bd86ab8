#include "pointers.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "lock.h"
#include "memory.h"

/* Hash tables with linear probing, in shards so that threads rarely meet. */
enum { SHARDS = 16, FIRST_CAPACITY = 128 };

struct entry {
    uint64_t key; /* 0 is free */
    uint64_t bytes;
    uint32_t holders;
    uint16_t device;
    uint16_t kind;
};

struct shard {
    _Alignas(64) spinlock held;
    uint32_t count;
    uint64_t capacity; /* a power of two */
    struct entry *entries;
};

struct ledger {
    struct shard shards[SHARDS];
    _Atomic uint64_t managed; /* entries of that kind */
};

/* In memory that a forked child reads as zeros, as the tables are: its tables are empty, and no
 * lock is held by a thread that is not there. */
static struct ledger *_Atomic ledger;

static struct ledger *get_ledger(void)
{
    struct ledger *known = atomic_load_explicit(&ledger, memory_order_acquire);
    if (known)
        return known;
    struct ledger *made = memory_of_process(sizeof *made);
    if (made && !atomic_compare_exchange_strong(&ledger, &known, made)) {
        memory_return(made, sizeof *made);
        made = known;
    }
    return made;
}

static uint64_t hash_of(enum pointer_kind kind, uint64_t key)
{
    uint64_t mixed = (key ^ ((uint64_t)kind << 60)) * UINT64_C(0x9E3779B97F4A7C15);
    return mixed ^ (mixed >> 32);
}

static struct shard *shard_of(struct ledger *of, uint64_t hash)
{
    return &of->shards[hash % SHARDS];
}

static uint64_t home_of(const struct shard *shard, uint64_t hash)
{
    return (hash / SHARDS) & (shard->capacity - 1);
}

/* The entry of a key, or the free one where it would go. The table is never full. */
static struct entry *find(const struct shard *shard, enum pointer_kind kind, uint64_t key,
                          uint64_t hash)
{
    uint64_t at = home_of(shard, hash);
    for (;; at = (at + 1) & (shard->capacity - 1)) {
        struct entry *entry = &shard->entries[at];
        if (!entry->key || (entry->key == key && entry->kind == kind))
            return entry;
    }
}

static bool grow(struct shard *shard)
{
    struct shard larger = {.capacity = shard->capacity ? shard->capacity * 2 : FIRST_CAPACITY};
    larger.entries = memory_of_process(larger.capacity * sizeof *larger.entries);
    if (!larger.entries)
        return false;
    for (uint64_t i = 0; i < shard->capacity; i++) {
        const struct entry *entry = &shard->entries[i];
        if (entry->key)
            *find(&larger, entry->kind, entry->key, hash_of(entry->kind, entry->key)) = *entry;
    }
    memory_return(shard->entries, shard->capacity * sizeof *shard->entries);
    shard->entries = larger.entries;
    shard->capacity = larger.capacity;
    return true;
}

/* Frees an entry and moves later ones of its run back, so that no search stops short of them. */
static void remove_entry(struct shard *shard, struct entry *gone)
{
    uint64_t mask = shard->capacity - 1;
    uint64_t hole = (uint64_t)(gone - shard->entries);
    for (uint64_t at = (hole + 1) & mask; shard->entries[at].key; at = (at + 1) & mask) {
        const struct entry *entry = &shard->entries[at];
        uint64_t home = home_of(shard, hash_of(entry->kind, entry->key));
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            shard->entries[hole] = *entry;
            hole = at;
        }
    }
    shard->entries[hole] = (struct entry){0};
}

static void count_entry(struct ledger *of, struct shard *shard, enum pointer_kind kind, int more)
{
    shard->count += (uint32_t)more;
    if (kind == POINTER_MANAGED)
        atomic_fetch_add_explicit(&of->managed, (uint64_t)(int64_t)more, memory_order_relaxed);
}

static struct holding holding_of(const struct entry *entry)
{
    return (struct holding){.bytes = entry->bytes, .device = entry->device};
}

bool pointers_add(enum pointer_kind kind, uint64_t key, struct holding holding,
                  struct holding *displaced)
{
    displaced->bytes = 0;
    struct ledger *of = get_ledger();
    if (!of || !key)
        return false;
    uint64_t hash = hash_of(kind, key);
    struct shard *shard = shard_of(of, hash);
    lock_take(&shard->held);
    bool room = (uint64_t)shard->count * 4 < shard->capacity * 3 || grow(shard);
    if (room) {
        struct entry *entry = find(shard, kind, key, hash);
        if (entry->key) {
            *displaced = holding_of(entry);
        } else {
            count_entry(of, shard, kind, 1);
        }
        *entry = (struct entry){.key = key,
                                .bytes = holding.bytes,
                                .holders = 1,
                                .device = (uint16_t)holding.device,
                                .kind = (uint16_t)kind};
    }
    lock_give(&shard->held);
    return room;
}

bool pointers_retain(enum pointer_kind kind, uint64_t key)
{
    struct ledger *of = get_ledger();
    if (!of || !key)
        return false;
    uint64_t hash = hash_of(kind, key);
    struct shard *shard = shard_of(of, hash);
    bool there = false;
    lock_take(&shard->held);
    if (shard->capacity) {
        struct entry *entry = find(shard, kind, key, hash);
        there = entry->key;
        entry->holders += there;
    }
    lock_give(&shard->held);
    return there;
}

bool pointers_drop(enum pointer_kind kind, uint64_t key, struct holding *holding)
{
    struct ledger *of = get_ledger();
    if (!of || !key)
        return false;
    uint64_t hash = hash_of(kind, key);
    struct shard *shard = shard_of(of, hash);
    bool last = false;
    lock_take(&shard->held);
    if (shard->capacity) {
        struct entry *entry = find(shard, kind, key, hash);
        last = entry->key && --entry->holders == 0;
        if (last) {
            *holding = holding_of(entry);
            count_entry(of, shard, kind, -1);
            remove_entry(shard, entry);
        }
    }
    lock_give(&shard->held);
    return last;
}

bool pointers_any_managed(void)
{
    struct ledger *of = atomic_load_explicit(&ledger, memory_order_acquire);
    return of && atomic_load_explicit(&of->managed, memory_order_relaxed);
}

bool pointers_take_any(enum pointer_kind kind, unsigned device, struct holding *holding)
{
    struct ledger *of = get_ledger();
    for (unsigned i = 0; of && i < SHARDS; i++) {
        struct shard *shard = &of->shards[i];
        struct entry *found = NULL;
        lock_take(&shard->held);
        for (uint64_t at = 0; at < shard->capacity && !found; at++) {
            struct entry *entry = &shard->entries[at];
            if (entry->key && entry->kind == kind && entry->device == device)
                found = entry;
        }
        if (found) {
            *holding = holding_of(found);
            count_entry(of, shard, kind, -1);
            remove_entry(shard, found);
        }
        lock_give(&shard->held);
        if (found)
            return true;
    }
    return false;
}
