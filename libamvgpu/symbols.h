/* The dynamic symbols of a loaded object, and making them lead to other functions.
 *
 * Every way of finding a function in another object ends in that object's .dynsym: the PLT, code
 * built with -fno-plt, pointers in data, dlsym and dlvsym. Writing the address of a wrapper there
 * before the object is first bound reaches them all (seen on glibc 2.31 to 2.43); la_symbind
 * alone misses the pointers in data and the code without a PLT.
 */
#ifndef AMVGPU_SYMBOLS_H
#define AMVGPU_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>

typedef void function(void);

struct symbol_hook {
    const char *name;
    function *wrapper; /* NULL: only the address is wanted */
    function **real;   /* where the original's address goes */
};

/* The hooks of one copy of a library; the code of wrappers exists once per copy, since each must
 * call its own original. */
struct symbol_hooks {
    const struct symbol_hook *hooks;
    size_t count;
};

/* Address of a symbol that the object defines, NULL where it defines none. */
void *symbols_address(const struct link_map *object, const char *name);

/* Makes all hooked symbols of the object lead to their wrappers, or all of them to `instead` if
 * that is not NULL. False when the object's table cannot be written. */
bool symbols_rewrite(const struct link_map *object, const struct symbol_hooks *hooks,
                     function *instead);

/* The wrapper of `address` if that is a hooked original, else `address`. */
function *symbols_wrapper(const struct symbol_hooks *hooks, function *address);

#endif
