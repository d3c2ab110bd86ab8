/* A lock for a few instructions, in memory of the caller's choice.
 *
 * In memory that a forked child reads as zero (see memory.h) it is free in the child whatever
 * the parent's threads were doing: a pthread mutex would stay taken by a thread that is not
 * there.
 */
#ifndef AMVGPU_LOCK_H
#define AMVGPU_LOCK_H

#include <sched.h>
#include <stdatomic.h>

typedef _Atomic unsigned spinlock;

static inline void lock_take(spinlock *held)
{
    while (atomic_exchange_explicit(held, 1, memory_order_acquire))
        while (atomic_load_explicit(held, memory_order_relaxed))
            sched_yield();
}

static inline void lock_give(spinlock *held)
{
    atomic_store_explicit(held, 0, memory_order_release);
}

#endif
