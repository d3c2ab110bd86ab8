/* Locks for a few instructions. A pthread mutex would stay taken in a forked child by a thread that
 * is not there.
 */
#ifndef AMVGPU_LOCK_H
#define AMVGPU_LOCK_H

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

typedef _Atomic int spinlock;

/* In memory that a forked child reads as zero (memory.h), and so finds free. */

static inline void lock_take(spinlock *held)
{
    while (atomic_exchange_explicit(held, 1, memory_order_acquire))
        while (atomic_load_explicit(held, memory_order_relaxed))
            sched_yield();
}

/* In memory that a forked child inherits: it holds the process's number, and the child takes over
 * what its parent held. */
static inline void lock_take_inherited(spinlock *held)
{
    int self = getpid(), holder = 0;
    while (!atomic_compare_exchange_weak(held, &holder, self)) {
        if (holder != 0 && holder != self && atomic_compare_exchange_strong(held, &holder, self))
            return;
        holder = 0;
        sched_yield();
    }
}

static inline void lock_give(spinlock *held)
{
    atomic_store_explicit(held, 0, memory_order_release);
}

#endif
