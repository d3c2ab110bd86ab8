/* A process can hold several copies of a library: two versions, or one in another link namespace.
 * The wrappers are compiled once per copy, each with its own originals.
 */
#ifndef AMVGPU_COPIES_H
#define AMVGPU_COPIES_H

#include "symbols.h"

#define EACH_COPY(per) per(0) per(1) per(2) per(3)
enum { COPIES = 4 };

#define COPY_NAME_2(library, copy) library##_hooks_##copy
#define COPY_NAME(library, copy) COPY_NAME_2(library, copy)

#define DECLARE_COPY(copy) \
    extern const struct symbol_hooks hsa_hooks_##copy, hip_hooks_##copy, libc_hooks_##copy;
EACH_COPY(DECLARE_COPY)

/* Within a file of wrappers: the type of an entry point, its original and its row in the table. */
#define ENTRY(result, name, ...)              \
    typedef result name##_function(__VA_ARGS__); \
    static function *real_##name
#define REAL(name) ((name##_function *)real_##name)
#define WRAPPED(name) {#name, (function *)wrap_##name, &real_##name}
#define WANTED(name) {#name, NULL, &real_##name}

#endif
