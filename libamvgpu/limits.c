#include "limits.h"

#include <stddef.h>
#include <string.h>

bool number_read(const char *text, unsigned long length, uint64_t largest, uint64_t *number)
{
    uint64_t sum = 0;
    if (length == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        unsigned digit = (unsigned)text[i] - '0';
        if (digit > 9 || sum > (largest - digit) / 10)
            return false;
        sum = sum * 10 + digit;
    }
    *number = sum;
    return true;
}

static unsigned shift_of(char unit)
{
    switch (unit | 0x20) { /* lower case */
    case 'k':
        return 10;
    case 'm':
        return 20;
    case 'g':
        return 30;
    case 't':
        return 40;
    default:
        return 0;
    }
}

bool limit_read(const char *text, uint64_t *bytes)
{
    size_t length = strlen(text);
    unsigned shift = length ? shift_of(text[length - 1]) : 0;
    uint64_t number;
    if (!number_read(text, length - (shift ? 1 : 0), UINT64_MAX >> shift, &number))
        return false;
    *bytes = number << shift;
    return true;
}
