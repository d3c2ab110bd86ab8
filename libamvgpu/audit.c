/* What ld.so calls (rtld-audit(7)), and the only names that are exported. */
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "account.h"
#include "copies.h"
#include "environment.h"
#include "limits.h"
#include "log.h"
#include "program.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED unsigned la_version(unsigned version);
EXPORTED unsigned la_objopen(struct link_map *object, Lmid_t space, uintptr_t *cookie);
EXPORTED unsigned la_objclose(uintptr_t *cookie);

static const char fallback_region[] = "/tmp/hipdevshr.cache";

extern char **environ; /* of this library's own libc, but the kernel's array: the program's */

/* ---- limits ---- */

/* Writes "HIP_DEVICE_MEMORY_LIMIT_<device>". */
static void limit_name(char *name, unsigned device)
{
    char *at = stpcpy(name, "HIP_DEVICE_MEMORY_LIMIT_");
    if (device > 9)
        *at++ = (char)('0' + device / 10);
    *at++ = (char)('0' + device % 10);
    *at = '\0';
}

/* What a value allows: a value that cannot be read allows nothing. */
static uint64_t allowed_by(const char *name, const char *value)
{
    uint64_t bytes;
    if (limit_read(value, &bytes))
        return bytes;
    log_line(LOG_ERROR,
             "%s: expected a number of bytes with at most one of k, m, g, t, found '%s'; all memory "
             "of the device is refused. Correct the value and restart the container.",
             name, value);
    return 0;
}

static void read_limits(uint64_t *limits)
{
    static const char all_name[] = "HIP_DEVICE_MEMORY_LIMIT";
    const char *all = environment_value(all_name);
    uint64_t of_all = all ? allowed_by(all_name, all) : REGION_NO_LIMIT;
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        char name[40];
        limit_name(name, device);
        const char *value = environment_value(name);
        limits[device] = value ? allowed_by(name, value) : of_all;
    }
}

/* ---- the copies of the libraries ---- */

enum library { OTHER, LIBC, HSA, HIP };

struct copy {
    _Atomic int taken;
    const struct symbol_hooks *hooks;
};

#define HSA_COPY(copy) {0, &hsa_hooks_##copy},
#define HIP_COPY(copy) {0, &hip_hooks_##copy},
#define LIBC_COPY(copy) {0, &libc_hooks_##copy},
static struct copy hsa_copies[] = {EACH_COPY(HSA_COPY)};
static struct copy hip_copies[] = {EACH_COPY(HIP_COPY)};
static struct copy libc_copies[] = {EACH_COPY(LIBC_COPY)};

static char ***main_environment;

char ***program_environment(void)
{
    return main_environment;
}

static enum library library_of(const struct link_map *object)
{
    /* By what it defines, not by its name: wheels rename their libraries. */
    if (symbols_address(object, "hsa_amd_memory_pool_allocate"))
        return HSA;
    if (symbols_address(object, "hipMalloc"))
        return HIP;
    if (symbols_address(object, "__libc_start_main") && symbols_address(object, "getenv"))
        return LIBC;
    return OTHER;
}

/* Stand in for every entry point of a copy that is one too many. */
static int refuse_hip(void)
{
    return 2; /* hipErrorOutOfMemory */
}

static int refuse_hsa(void)
{
    return 0x1008; /* HSA_STATUS_ERROR_OUT_OF_RESOURCES */
}

static struct copy *free_copy(struct copy *copies)
{
    for (struct copy *copy = copies; copy < copies + COPIES; copy++) {
        int expected = 0;
        if (atomic_compare_exchange_strong(&copy->taken, &expected, 1))
            return copy;
    }
    return NULL;
}

/* A library whose memory cannot be counted must not run, and ld.so has no way to refuse it. */
static void end_process(const char *name)
{
    log_line(LOG_ERROR,
             "%s: expected a symbol table that can be written, found one that cannot; the process "
             "is ended, since its device memory could not be limited",
             name);
    _exit(1);
}

static struct copy *wrap(const struct link_map *object, struct copy *copies, function *refusal)
{
    struct copy *copy = free_copy(copies);
    if (!copy && refusal)
        log_line(LOG_ERROR, "%s: expected at most %d copies of it in one process, found more; all "
                            "its calls are refused",
                 object->l_name, COPIES);
    else if (!copy)
        log_line(LOG_WARN, "%s: more than %d copies of libc in one process; the environment of this "
                           "one is not held to the share",
                 object->l_name, COPIES);
    if (!copy && !refusal)
        return NULL;
    /* Refused copies borrow the first's table of names, not its originals. */
    if (!symbols_rewrite(object, copy ? copy->hooks : copies[0].hooks, copy ? NULL : refusal))
        end_process(object->l_name);
    return copy;
}

/* ---- the calls of ld.so ---- */

unsigned la_version(unsigned version)
{
    static uint64_t limits[REGION_DEVICES]; /* zero: nothing is allowed */
    for (char **entry = environ; entry && *entry; entry++)
        if (strncmp(*entry, "LIBHIP_LOG_LEVEL=", 17) == 0)
            log_choose_level(*entry + 17);
    if (environment_begin(environ))
        read_limits(limits);
    const char *region = environment_value("HIP_DEVICE_MEMORY_SHARED_CACHE");
    const char *open = environment_value("LIBAMVGPU_FAIL_OPEN");
    account_begin(limits, region && *region ? region : fallback_region,
                  open && strcmp(open, "1") == 0);
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

unsigned la_objopen(struct link_map *object, Lmid_t space, uintptr_t *cookie)
{
    struct copy *copy = NULL;
    if (space == LM_ID_BASE && object->l_name[0] == '\0')
        main_environment = symbols_address(object, "environ");
    switch (library_of(object)) {
    case LIBC:
        copy = wrap(object, libc_copies, NULL);
        break;
    case HSA:
        copy = wrap(object, hsa_copies, (function *)refuse_hsa);
        break;
    case HIP:
        copy = wrap(object, hip_copies, (function *)refuse_hip);
        break;
    case OTHER:
        break;
    }
    *cookie = (uintptr_t)copy;
    return 0; /* no symbol bindings are watched: they cost time and miss calls */
}

unsigned la_objclose(uintptr_t *cookie)
{
    struct copy *copy = (struct copy *)*cookie;
    if (copy)
        atomic_store(&copy->taken, 0);
    return 0;
}
