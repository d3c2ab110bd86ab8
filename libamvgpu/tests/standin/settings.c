/* What the stand-in pretends to be. */
#include "standin.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct settings chosen = {.gpus = 2, .vram = UINT64_C(64) << 30, .architecture = "gfx942"};
static int calls_file = -1;

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void choose(void)
{
    chosen.gpus = (unsigned)number("STANDIN_GPUS", chosen.gpus);
    if (chosen.gpus > MOST_GPUS)
        chosen.gpus = MOST_GPUS;
    chosen.vram = number("STANDIN_VRAM_MIB", chosen.vram >> 20) << 20;
    chosen.partitions = number("STANDIN_PARTITIONS", 0);
    chosen.extended = number("STANDIN_EXTENDED", 0);
    if (getenv("STANDIN_APU"))
        chosen.apu = strcmp(getenv("STANDIN_APU"), "node") == 0 ? APU_OF_ONE_NODE : APU;
    if (getenv("STANDIN_ARCH"))
        chosen.architecture = getenv("STANDIN_ARCH");
    bool features = strcmp(chosen.architecture, "gfx942") == 0 ||
                    strcmp(chosen.architecture, "gfx90a") == 0;
    snprintf(chosen.isa, sizeof chosen.isa, "amdgcn-amd-amdhsa--%s%s", chosen.architecture,
             features ? ":sramecc+:xnack-" : "");
    if (getenv("STANDIN_CALLS")) {
        enum { OUT_OF_THE_WAY = 2000 }; /* of programs that close their files */
        int file = open(getenv("STANDIN_CALLS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        calls_file = fcntl(file, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
        close(file);
    }
}

const struct settings *settings(void)
{
    return &chosen;
}

void note_call(const char *format, ...)
{
    char line[1024];
    va_list values;
    if (calls_file < 0)
        return;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line - 1, format, values);
    va_end(values);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (write(calls_file, line, (size_t)length) < 0)
        abort();
}
