/* Signals are numbers in memory; handlers run in one thread that looks at them ten times a
 * millisecond. */
#include "standin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HANDLERS = 256, LOOK_MICROSECONDS = 100 };

uint64_t nanoseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

amd_signal_t *signal_of(hsa_signal_t handle)
{
    return (amd_signal_t *)handle.handle;
}

hsa_status_t make_signal(int64_t value, hsa_signal_t *handle)
{
    amd_signal_t *made = aligned_alloc(64, (sizeof *made + 63) / 64 * 64);
    if (!made)
        abort();
    memset(made, 0, sizeof *made);
    made->kind = AMD_SIGNAL_KIND_USER;
    made->value = value;
    handle->handle = (uintptr_t)made;
    return HSA_STATUS_SUCCESS;
}

void complete_signal(hsa_signal_t handle)
{
    if (!handle.handle)
        return;
    signal_of(handle)->start_ts = nanoseconds();
    signal_of(handle)->end_ts = signal_of(handle)->start_ts + 1000;
    __atomic_fetch_sub(&signal_of(handle)->value, 1, __ATOMIC_SEQ_CST);
}

hsa_status_t hsa_signal_create(hsa_signal_value_t value, uint32_t count, const hsa_agent_t *agents,
                               hsa_signal_t *handle)
{
    return make_signal(value, handle);
}

hsa_status_t hsa_amd_signal_create(hsa_signal_value_t value, uint32_t count,
                                   const hsa_agent_t *agents, uint64_t attributes,
                                   hsa_signal_t *handle)
{
    return make_signal(value, handle);
}

/* Not freed: handlers may still look at it. */
hsa_status_t hsa_signal_destroy(hsa_signal_t handle)
{
    return HSA_STATUS_SUCCESS;
}

static void store(hsa_signal_t handle, int64_t value)
{
    if (signal_of(handle)->queue_ptr)
        ring((amd_queue_t *)signal_of(handle)->queue_ptr); /* a doorbell */
    else
        __atomic_store_n(&signal_of(handle)->value, value, __ATOMIC_SEQ_CST);
}

void hsa_signal_store_relaxed(hsa_signal_t handle, hsa_signal_value_t value)
{
    store(handle, value);
}

void hsa_signal_store_screlease(hsa_signal_t handle, hsa_signal_value_t value)
{
    store(handle, value);
}

void hsa_signal_silent_store_relaxed(hsa_signal_t handle, hsa_signal_value_t value)
{
    store(handle, value);
}

hsa_signal_value_t hsa_signal_load_relaxed(hsa_signal_t handle)
{
    return __atomic_load_n(&signal_of(handle)->value, __ATOMIC_SEQ_CST);
}

void hsa_signal_add_relaxed(hsa_signal_t handle, hsa_signal_value_t value)
{
    __atomic_fetch_add(&signal_of(handle)->value, value, __ATOMIC_SEQ_CST);
}

void hsa_signal_subtract_relaxed(hsa_signal_t handle, hsa_signal_value_t value)
{
    __atomic_fetch_sub(&signal_of(handle)->value, value, __ATOMIC_SEQ_CST);
}

hsa_status_t hsa_amd_signal_value_pointer(hsa_signal_t handle,
                                          volatile hsa_signal_value_t **pointer)
{
    *pointer = (volatile hsa_signal_value_t *)&signal_of(handle)->value;
    return HSA_STATUS_SUCCESS;
}

static bool holds(hsa_signal_condition_t condition, int64_t value, int64_t compared)
{
    switch (condition) {
    case HSA_SIGNAL_CONDITION_EQ:
        return value == compared;
    case HSA_SIGNAL_CONDITION_NE:
        return value != compared;
    case HSA_SIGNAL_CONDITION_LT:
        return value < compared;
    default:
        return value >= compared;
    }
}

hsa_signal_value_t hsa_signal_wait_scacquire(hsa_signal_t handle, hsa_signal_condition_t condition,
                                             hsa_signal_value_t compared, uint64_t timeout,
                                             hsa_wait_state_t state)
{
    uint64_t start = nanoseconds();
    int64_t value;
    while (!holds(condition, value = hsa_signal_load_relaxed(handle), compared) &&
           nanoseconds() - start <= timeout)
        usleep(LOOK_MICROSECONDS);
    return value;
}

/* ---- handlers ---- */

struct handler {
    bool active;
    hsa_signal_t signal;
    hsa_signal_condition_t condition;
    int64_t compared;
    hsa_amd_signal_handler call;
    void *data;
};

static struct handler handlers[HANDLERS];
static pthread_mutex_t handlers_lock = PTHREAD_MUTEX_INITIALIZER;

static void *look(void *unused)
{
    for (;;) {
        usleep(LOOK_MICROSECONDS);
        for (unsigned i = 0; i < HANDLERS; i++) {
            pthread_mutex_lock(&handlers_lock);
            struct handler handler = handlers[i];
            pthread_mutex_unlock(&handlers_lock);
            if (!handler.active)
                continue;
            int64_t value = hsa_signal_load_relaxed(handler.signal);
            if (holds(handler.condition, value, handler.compared) &&
                !handler.call(value, handler.data)) {
                pthread_mutex_lock(&handlers_lock);
                handlers[i].active = false;
                pthread_mutex_unlock(&handlers_lock);
            }
        }
    }
    return unused;
}

static void start_looking(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, look, NULL))
        abort();
}

hsa_status_t hsa_amd_signal_async_handler(hsa_signal_t handle, hsa_signal_condition_t condition,
                                          hsa_signal_value_t compared, hsa_amd_signal_handler call,
                                          void *data)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_looking);
    hsa_status_t status = HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    pthread_mutex_lock(&handlers_lock);
    for (unsigned i = 0; i < HANDLERS && status; i++)
        if (!handlers[i].active) {
            handlers[i] = (struct handler){true, handle, condition, compared, call, data};
            status = HSA_STATUS_SUCCESS;
        }
    pthread_mutex_unlock(&handlers_lock);
    return status;
}
