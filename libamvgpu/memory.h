/* Memory straight from the kernel: the library may not call malloc, whose locks can be held for
 * ever in a forked child.
 */
#ifndef AMVGPU_MEMORY_H
#define AMVGPU_MEMORY_H

#include <stddef.h>

/* Zeroed memory that a forked child reads as zeros again: what the library knows of a process
 * must not be believed of its child, and no fork handler of the program's libc ever reaches this
 * library. NULL where there is none (or the kernel is older than 4.14). */
void *memory_of_process(size_t bytes);

void memory_return(void *memory, size_t bytes);

#endif
