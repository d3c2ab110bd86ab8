#include "account.h"

#include <stdatomic.h>
#include <stddef.h>

#include "lock.h"
#include "log.h"
#include "usage.h"

enum region_state { REGION_UNOPENED, REGION_OPEN, REGION_UNUSABLE };

static struct {
    uint64_t limits[REGION_DEVICES];
    const char *path;
    bool fail_open;
    bool limited; /* some device has a limit */
    _Atomic int state;
    struct usage region;
} account;

/* Threads with a loan or a watch. With none, a request need not look at thread-local storage,
 * which costs a call of ld.so each time. */
static _Atomic unsigned attentive;

static _Thread_local struct {
    uint64_t lent;
    unsigned device;
    bool refused;
} thread;

void account_begin(const uint64_t *limits, const char *path, bool fail_open)
{
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        account.limits[device] = limits[device];
        account.limited = account.limited || limits[device] != REGION_NO_LIMIT;
    }
    account.path = path;
    account.fail_open = fail_open;
}

/* Opens the region at first need: most processes of a container never touch a GPU. */
static int open_region(void)
{
    static spinlock opening;
    lock_take_inherited(&opening);
    if (account.state == REGION_UNOPENED) {
        bool opened = usage_open(&account.region, account.path, account.limits);
        if (!opened && account.fail_open)
            log_line(LOG_WARN, "LIBAMVGPU_FAIL_OPEN is set: device memory is NOT limited");
        atomic_store(&account.state, opened ? REGION_OPEN : REGION_UNUSABLE);
    }
    lock_give(&opening);
    return account.state;
}

__attribute__((noinline)) static bool make_ready(void)
{
    int state = atomic_load_explicit(&account.state, memory_order_acquire);
    if (state == REGION_UNOPENED)
        state = open_region();
    return state == REGION_OPEN && usage_attach(&account.region);
}

/* Whether there is a region to count in. */
static inline bool ready(void)
{
    return (atomic_load_explicit(&account.state, memory_order_acquire) == REGION_OPEN &&
            usage_attached(&account.region)) ||
           make_ready();
}

static bool reserve(unsigned device, uint64_t bytes)
{
    uint64_t limit = account_limit(device);
    if (!account.limited)
        return true; /* a share of compute units only */
    if (device >= REGION_DEVICES) {
        log_line(LOG_ERROR,
                 "device %u: expected at most %u devices, found more; its memory is refused. Show "
                 "the container fewer GPUs.",
                 device, REGION_DEVICES);
        return false;
    }
    if (!ready())
        return account.fail_open || limit == REGION_NO_LIMIT;
    if (device >= account.region.devices) {
        if (limit == REGION_NO_LIMIT)
            return true;
        log_line(LOG_ERROR,
                 "usage region %s: expected room for device %u, found a region for %u devices; "
                 "its memory is refused. Make the share anew.",
                 account.path, device, account.region.devices);
        return false;
    }
    if (usage_reserve(&account.region, device, bytes, limit))
        return true;
    log_line(LOG_WARN, "device %u: %lu bytes refused, %lu of %lu in use", device, bytes,
             usage_used(&account.region, device), limit);
    return false;
}

bool account_reserve(unsigned device, uint64_t bytes)
{
    uint64_t lent = 0;
    if (!atomic_load_explicit(&attentive, memory_order_relaxed))
        return reserve(device, bytes);
    if (thread.lent && thread.device == device)
        lent = thread.lent < bytes ? thread.lent : bytes;
    thread.refused = bytes > lent && !reserve(device, bytes - lent);
    if (thread.refused)
        return false;
    thread.lent -= lent;
    return true;
}

void account_release(unsigned device, uint64_t bytes)
{
    if (bytes == 0 || !account.limited || device >= REGION_DEVICES)
        return;
    /* After a fork the child has no slot and nothing to give back. */
    if (account.state == REGION_OPEN && device < account.region.devices &&
        account.region.process->attached)
        usage_release(&account.region, device, bytes);
}

bool account_lend(unsigned device, uint64_t bytes)
{
    if (!account_reserve(device, bytes))
        return false;
    thread.lent = bytes;
    thread.device = device;
    attentive++;
    return true;
}

uint64_t account_end_loan(void)
{
    uint64_t left = thread.lent;
    thread.lent = 0;
    attentive--;
    return left;
}

void account_watch(void)
{
    thread.refused = false;
    attentive++;
}

bool account_saw_refusal(void)
{
    attentive--;
    return thread.refused;
}

bool account_limits_any(void)
{
    return account.limited;
}

uint64_t account_limit(unsigned device)
{
    if (device < REGION_DEVICES)
        return account.limits[device];
    return account.limited ? 0 : REGION_NO_LIMIT;
}

uint64_t account_left(unsigned device)
{
    uint64_t limit = account_limit(device);
    if (limit == REGION_NO_LIMIT)
        return REGION_NO_LIMIT;
    if (!ready() || device >= account.region.devices)
        return account.fail_open ? limit : 0;
    uint64_t used = usage_used(&account.region, device);
    return used < limit ? limit - used : 0;
}
