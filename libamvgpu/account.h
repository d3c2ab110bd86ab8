/* What this process may still take of each device, and what it has taken.
 *
 * Devices are numbered in ROCr's agent order, as HIP_DEVICE_MEMORY_LIMIT_<i> is.
 */
#ifndef AMVGPU_ACCOUNT_H
#define AMVGPU_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

/* Once, before any program code runs. `limits` has REGION_DEVICES entries, REGION_NO_LIMIT for
 * none. `path` names the usage region. With `fail_open` memory is granted without a count when
 * the region cannot be used. */
void account_begin(const uint64_t *limits, const char *path, bool fail_open);

/* True if the bytes are granted; they are then this process's until released. Bytes lent to this
 * thread for the same device are used up first. */
bool account_reserve(unsigned device, uint64_t bytes);
void account_release(unsigned device, uint64_t bytes);

/* Grants bytes to this thread ahead of the calls that will ask for them, so that what is counted
 * at one level is not counted again a level below. Ended by account_end_loan, which answers what
 * was not used; that is still reserved. Loans do not nest. */
bool account_lend(unsigned device, uint64_t bytes);
uint64_t account_end_loan(void);

/* To learn what became of requests a level below: whether the last request of this thread between
 * the two calls was refused. */
void account_watch(void);
bool account_saw_refusal(void);

/* Whether any device has a limit; with none nothing is counted. */
bool account_limits_any(void);

/* REGION_NO_LIMIT where the device has none. Devices for which there is no column to count in have
 * none where no device has one, else nothing is allowed of them. */
uint64_t account_limit(unsigned device);

/* Bytes below the limit that nobody holds, REGION_NO_LIMIT where there is no limit. */
uint64_t account_left(unsigned device);

#endif
