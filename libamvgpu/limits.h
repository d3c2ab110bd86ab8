/* Limits of device memory, as the values of a share write them. */
#ifndef AMVGPU_LIMITS_H
#define AMVGPU_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* Reads a number of bytes: decimal digits and at most one of k, m, g, t in either case (powers of
 * 1024). False for anything else, and for what does not fit 64 bits. */
bool limit_read(const char *text, uint64_t *bytes);

/* Reads a whole decimal number up to `largest`, of exactly `length` characters. */
bool number_read(const char *text, unsigned long length, uint64_t largest, uint64_t *number);

#endif
