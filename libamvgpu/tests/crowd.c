/* One of many: takes a first piece of a GPU's memory from ROCr, then more until it is refused, and
 * gives all back. Before each of the three steps it waits for the end of a file, which comes to
 * all of the crowd at the same moment. After each of the first two it prints one line: its number
 * and how many pieces it was granted, or ROCr's code if that is neither success nor a refusal, as
 * a negative number.
 *
 * crowd BYTES FILE FILE FILE
 */
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 65536 };

static hsa_amd_memory_pool_t pool;
static void *pieces[MOST];
static int count;

static hsa_status_t find_pool(hsa_amd_memory_pool_t found, void *data)
{
    pool = found;
    return HSA_STATUS_INFO_BREAK;
}

static hsa_status_t find_agent(hsa_agent_t agent, void *data)
{
    hsa_device_type_t type;
    hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
    if (type == HSA_DEVICE_TYPE_GPU)
        hsa_amd_agent_iterate_memory_pools(agent, find_pool, NULL);
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t take(size_t bytes)
{
    hsa_status_t status = hsa_amd_memory_pool_allocate(pool, bytes, 0, &pieces[count]);
    count += status == HSA_STATUS_SUCCESS;
    return status;
}

/* In one write, so that the lines of many do not mix. */
static void report(hsa_status_t status, int taken)
{
    char line[64];
    int known = status == HSA_STATUS_SUCCESS || status == HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    int length = snprintf(line, sizeof line, "%d %d\n", getpid(), known ? taken : -(int)status);
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        abort();
}

static void wait_for_end(const char *file)
{
    char byte;
    while (read(atoi(file), &byte, 1) > 0)
        ;
}

int main(int argument_count, char **arguments)
{
    size_t bytes = strtoul(arguments[1], NULL, 10);
    hsa_status_t status;
    if (hsa_init() || hsa_iterate_agents(find_agent, NULL))
        abort();
    wait_for_end(arguments[2]);
    status = take(bytes);
    report(status, count);
    wait_for_end(arguments[3]);
    int first = count;
    do
        status = take(bytes);
    while (status == HSA_STATUS_SUCCESS);
    report(status, count - first);
    wait_for_end(arguments[4]);
    while (count)
        if (hsa_amd_memory_pool_free(pieces[--count]))
            abort();
    return 0;
}
