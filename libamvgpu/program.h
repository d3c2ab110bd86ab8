/* The main program, as ld.so shows it. */
#ifndef AMVGPU_PROGRAM_H
#define AMVGPU_PROGRAM_H

/* Where the program keeps `environ` itself: a non-PIC executable that names the variable has it
 * moved into its own data, and libc follows. NULL where libc's own counts. */
char ***program_environment(void);

#endif
