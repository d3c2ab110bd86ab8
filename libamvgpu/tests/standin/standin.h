/* A stand-in for libhsa-runtime64.so.1 on a machine without a GPU, good enough for the real
 * libamdhip64 to start, allocate, copy, and launch kernels that do nothing.
 *
 * Its memory of a GPU is a sparse file in memory, its queues complete every packet at once. It
 * keeps its own account of what is allocated, which is what tests compare the library with.
 *
 * Environment: ROCR_VISIBLE_DEVICES (see visible.c), STANDIN_GPUS (default 2), STANDIN_VRAM_MIB of
 * each (65536), STANDIN_ARCH (gfx942), STANDIN_PARTITIONS=1 (all GPUs at one PCI address),
 * STANDIN_APU=1 (they are APUs, beside a neural processing unit) or =node (one APU that is one node
 * with its CPU, as before Linux 6.6), STANDIN_EXTENDED=1 (pools that are fine-grained in an extended
 * scope, which HIP 5.2 does not know),
 * STANDIN_ACCOUNT (a file, see account.c), STANDIN_CALLS (a file that gets a line for each call
 * that tests ask about).
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hsa/amd_hsa_queue.h>
#include <hsa/amd_hsa_signal.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <hsa/hsa_ext_image.h>
#include <hsa/hsa_ven_amd_loader.h>

#define MOST_GPUS 66 /* two more than the library counts */

/* Agent handles: 1 is the CPU, 2 and up are GPUs, as the machine has them. Pool and region handles:
 * ten times the agent's, plus the kind. */
enum { CPU_AGENT = 1, FIRST_GPU_AGENT = 2, NPU_AGENT = FIRST_GPU_AGENT + MOST_GPUS };
enum pool { POOL_COARSE, POOL_FINE, POOL_EXTENDED, POOL_KERNARG, POOL_GROUP, POOL_KINDS };

enum apu { NO_APU, APU, APU_OF_ONE_NODE };

struct settings {
    unsigned gpus;
    uint64_t vram; /* bytes of each GPU */
    const char *architecture;
    char isa[96];
    bool partitions;
    enum apu apu;
    bool extended;
};

const struct settings *settings(void);

/* Writes a line to the file of STANDIN_CALLS, if there is one. */
void note_call(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline bool is_gpu(uint64_t agent)
{
    return agent >= FIRST_GPU_AGENT && agent < NPU_AGENT;
}

static inline uint64_t agent_of_pool(uint64_t pool)
{
    return pool / 10;
}

/* ---- visible.c ---- */

enum { UUID_BYTES = 21 }; /* what ROCr asks for, the end of the string included */

struct visible {
    unsigned count;
    uint64_t agents[MOST_GPUS]; /* in the order in which they are shown */
};

const struct visible *visible_gpus(void);
void write_uuid(char *text, uint64_t agent);

/* ---- account.c: what this process holds of each GPU ---- */

bool account_take(uint64_t agent, size_t bytes); /* false: the GPU is full */
void account_give(uint64_t agent, size_t bytes);
uint64_t account_free(uint64_t agent);

/* ---- memory.c ---- */

/* Sparse memory of the GPUs: a file, and where the next allocation in it begins. */
int vram_file(void);
uint64_t vram_place(size_t bytes);
void vram_discard(uint64_t offset, size_t bytes);

/* ---- signals.c ---- */

uint64_t nanoseconds(void);
amd_signal_t *signal_of(hsa_signal_t handle);
hsa_status_t make_signal(int64_t value, hsa_signal_t *handle);
void complete_signal(hsa_signal_t handle);

/* ---- queues.c ---- */

void ring(amd_queue_t *queue);

#endif
