/* Queues complete every packet when their doorbell rings, and copies are done at once. */
#include "standin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PACKET = 64, INVALID_PACKET = HSA_PACKET_TYPE_INVALID };

hsa_status_t hsa_queue_create(hsa_agent_t agent, uint32_t size, hsa_queue_type32_t type,
                              void (*callback)(hsa_status_t, hsa_queue_t *, void *), void *data,
                              uint32_t private_bytes, uint32_t group_bytes, hsa_queue_t **created)
{
    amd_queue_t *queue = aligned_alloc(4096, (sizeof *queue + 4095) / 4096 * 4096);
    char *packets = mmap(NULL, (size_t)size * PACKET, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!queue || packets == MAP_FAILED)
        abort();
    memset(queue, 0, sizeof *queue);
    for (uint32_t i = 0; i < size; i++)
        *(uint16_t *)(void *)(packets + (size_t)i * PACKET) = INVALID_PACKET;
    queue->hsa_queue.type = type;
    queue->hsa_queue.features = HSA_QUEUE_FEATURE_KERNEL_DISPATCH;
    queue->hsa_queue.base_address = packets;
    queue->hsa_queue.size = size;
    queue->hsa_queue.id = (uint64_t)random();
    make_signal(0, &queue->hsa_queue.doorbell_signal);
    amd_signal_t *doorbell = signal_of(queue->hsa_queue.doorbell_signal);
    doorbell->kind = AMD_SIGNAL_KIND_DOORBELL;
    doorbell->queue_ptr = queue;
    *created = &queue->hsa_queue;
    note_call("hsa_queue_create");
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_queue_destroy(hsa_queue_t *queue)
{
    return HSA_STATUS_SUCCESS;
}

void ring(amd_queue_t *queue)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    while (queue->read_dispatch_id < queue->write_dispatch_id) {
        char *packet = (char *)queue->hsa_queue.base_address +
                       PACKET * (queue->read_dispatch_id & (queue->hsa_queue.size - 1));
        uint16_t *header = (uint16_t *)(void *)packet;
        if ((__atomic_load_n(header, __ATOMIC_ACQUIRE) & 0xff) == INVALID_PACKET)
            break;
        hsa_signal_t completion = *(hsa_signal_t *)(void *)(packet + PACKET - 8);
        __atomic_store_n(header, INVALID_PACKET, __ATOMIC_RELEASE);
        complete_signal(completion);
        queue->read_dispatch_id++;
    }
    pthread_mutex_unlock(&one);
}

static amd_queue_t *own(const hsa_queue_t *queue)
{
    return (amd_queue_t *)(uintptr_t)queue;
}

uint64_t hsa_queue_load_read_index_relaxed(const hsa_queue_t *queue)
{
    return own(queue)->read_dispatch_id;
}

uint64_t hsa_queue_load_read_index_scacquire(const hsa_queue_t *queue)
{
    return own(queue)->read_dispatch_id;
}

uint64_t hsa_queue_load_write_index_relaxed(const hsa_queue_t *queue)
{
    return own(queue)->write_dispatch_id;
}

uint64_t hsa_queue_add_write_index_screlease(const hsa_queue_t *queue, uint64_t count)
{
    return __atomic_fetch_add(&own(queue)->write_dispatch_id, count, __ATOMIC_SEQ_CST);
}

hsa_status_t hsa_amd_queue_cu_set_mask(const hsa_queue_t *queue, uint32_t bits,
                                       const uint32_t *mask)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_queue_set_priority(hsa_queue_t *queue, hsa_amd_queue_priority_t priority)
{
    note_call("hsa_amd_queue_set_priority %d", (int)priority);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_profiling_set_profiler_enabled(hsa_queue_t *queue, int enable)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_profiling_async_copy_enable(bool enable)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_profiling_get_dispatch_time(hsa_agent_t agent, hsa_signal_t signal,
                                                 hsa_amd_profiling_dispatch_time_t *time)
{
    time->start = signal_of(signal)->start_ts;
    time->end = signal_of(signal)->end_ts;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_profiling_get_async_copy_time(hsa_signal_t signal,
                                                   hsa_amd_profiling_async_copy_time_t *time)
{
    time->start = signal_of(signal)->start_ts;
    time->end = signal_of(signal)->end_ts;
    return HSA_STATUS_SUCCESS;
}

/* ---- copies ---- */

hsa_status_t hsa_memory_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_async_copy(void *to, hsa_agent_t to_agent, const void *from,
                                       hsa_agent_t from_agent, size_t bytes, uint32_t count,
                                       const hsa_signal_t *after, hsa_signal_t completion)
{
    memcpy(to, from, bytes);
    complete_signal(completion);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_async_copy_on_engine(void *to, hsa_agent_t to_agent, const void *from,
                                                 hsa_agent_t from_agent, size_t bytes,
                                                 uint32_t count, const hsa_signal_t *after,
                                                 hsa_signal_t completion,
                                                 hsa_amd_sdma_engine_id_t engine, bool force)
{
    memcpy(to, from, bytes);
    complete_signal(completion);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_async_copy_rect(const hsa_pitched_ptr_t *to, const hsa_dim3_t *to_at,
                                            const hsa_pitched_ptr_t *from,
                                            const hsa_dim3_t *from_at, const hsa_dim3_t *range,
                                            hsa_agent_t agent, hsa_amd_copy_direction_t direction,
                                            uint32_t count, const hsa_signal_t *after,
                                            hsa_signal_t completion)
{
    complete_signal(completion);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_copy_engine_status(hsa_agent_t to, hsa_agent_t from, uint32_t *engines)
{
    *engines = 3;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_get_preferred_copy_engine(hsa_agent_t to, hsa_agent_t from,
                                                      uint32_t *engines)
{
    *engines = 3;
    return HSA_STATUS_SUCCESS;
}
