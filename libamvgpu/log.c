#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

enum { LINE_BYTES = 512 };

struct line {
    char text[LINE_BYTES];
    size_t length;
};

static enum log_level chosen = LOG_WARN;

void log_choose_level(const char *value)
{
    bool digit = value && value[0] >= '0' && value[0] <= '4' && value[1] == '\0';
    chosen = digit ? (enum log_level)(value[0] - '0') : LOG_WARN;
}

static void add_character(struct line *line, char character)
{
    if (line->length < LINE_BYTES - 1) /* room for the newline */
        line->text[line->length++] = character;
}

static void add_text(struct line *line, const char *text)
{
    for (const char *at = text ? text : "(none)"; *at; at++)
        add_character(line, *at);
}

static void add_number(struct line *line, unsigned long number, unsigned base)
{
    char digits[24];
    size_t count = 0;
    do
        digits[count++] = "0123456789abcdef"[number % base];
    while (number /= base);
    while (count)
        add_character(line, digits[--count]);
}

static void add_signed(struct line *line, int number)
{
    if (number < 0)
        add_character(line, '-');
    add_number(line, number < 0 ? 0ul - (unsigned long)number : (unsigned long)number, 10);
}

void log_line(enum log_level level, const char *format, ...)
{
    static const char *const names[] = {"", "ERROR", "WARN", "INFO", "DEBUG"};
    if (level > chosen)
        return;
    int kept = errno; /* the program's libc has its own, this is for our own callers */
    struct line line = {.length = 0};
    add_text(&line, "[amvgpu ");
    add_text(&line, names[level]);
    add_text(&line, " pid ");
    add_signed(&line, getpid());
    add_text(&line, "] ");

    va_list values;
    va_start(values, format);
    for (const char *at = format; *at; at++) {
        if (*at != '%') {
            add_character(&line, *at);
            continue;
        }
        switch (*++at) {
        case 's':
            add_text(&line, va_arg(values, const char *));
            break;
        case 'd':
            add_signed(&line, va_arg(values, int));
            break;
        case 'u':
            add_number(&line, va_arg(values, unsigned), 10);
            break;
        case 'l':
            add_number(&line, va_arg(values, unsigned long), *++at == 'x' ? 16 : 10);
            break;
        default:
            add_character(&line, *at);
        }
    }
    va_end(values);

    line.text[line.length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line.text, line.length);
    (void)ignored; /* nobody is left to be told */
    errno = kept;
}
