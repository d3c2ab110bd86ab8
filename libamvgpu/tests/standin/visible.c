/* Which GPUs a process sees and in what order: ROCR_VISIBLE_DEVICES as ROCr reads it.
 *
 * A list of indices and UUIDs, of which the beginning is enough where it fits one GPU alone. The
 * agents come in the order of the list. What fits no GPU or one that is in the list already ends
 * it, without a word; so does its length once it has as many entries as there are GPUs. A list
 * that is there but empty leaves no GPU.
 */
#include "standin.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX_LENGTH = 4 /* "GPU-" */, NONE = -1 };

static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static struct visible visible;

void write_uuid(char *text, uint64_t agent)
{
    sprintf(text, "GPU-%016x", (unsigned)(0xfa4e0000 + agent));
}

static int gpu_of_uuid(const char *entry)
{
    int found = NONE;
    if (strlen(entry) <= PREFIX_LENGTH)
        return NONE;
    for (unsigned gpu = 0; gpu < settings()->gpus; gpu++) {
        char uuid[UUID_BYTES];
        write_uuid(uuid, FIRST_GPU_AGENT + gpu);
        if (strncasecmp(uuid, entry, strlen(entry)))
            continue;
        if (found != NONE)
            return NONE;
        found = (int)gpu;
    }
    return found;
}

static int gpu_of_index(const char *entry)
{
    char *end;
    long index = strtol(entry, &end, 0);
    return end > entry && !*end && index >= 0 && index < (long)settings()->gpus ? (int)index : NONE;
}

static char *trim(char *entry)
{
    while (isspace((unsigned char)*entry))
        entry++;
    for (char *end = entry + strlen(entry); end > entry && isspace((unsigned char)end[-1]);)
        *--end = '\0';
    return entry;
}

static bool is_visible(uint64_t agent)
{
    for (unsigned i = 0; i < visible.count; i++)
        if (visible.agents[i] == agent)
            return true;
    return false;
}

static void read_list(void)
{
    const char *list = getenv("ROCR_VISIBLE_DEVICES");
    if (!list) {
        while (visible.count < settings()->gpus) {
            visible.agents[visible.count] = FIRST_GPU_AGENT + visible.count;
            visible.count++;
        }
        return;
    }
    char *text = strdup(list), *rest = text, *entry;
    while (visible.count < settings()->gpus && (entry = strsep(&rest, ","))) {
        entry = trim(entry);
        int gpu = toupper((unsigned char)*entry) == 'G' ? gpu_of_uuid(entry) : gpu_of_index(entry);
        if (gpu == NONE || is_visible(FIRST_GPU_AGENT + (uint64_t)gpu))
            break;
        visible.agents[visible.count++] = FIRST_GPU_AGENT + (uint64_t)gpu;
    }
    free(text);
}

const struct visible *visible_gpus(void)
{
    pthread_once(&read_once, read_list);
    return &visible;
}
