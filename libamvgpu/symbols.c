#include "symbols.h"

#include <elf.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

struct table {
    uintptr_t base;
    ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *hash; /* the older kind, for objects that have no other */
};

/* A pointer of the dynamic section: some versions of ld.so have added the base already. */
static const void *pointer_of(const struct link_map *object, ElfW(Addr) value)
{
    return (const void *)(value < object->l_addr ? value + object->l_addr : value);
}

static bool read_table(const struct link_map *object, struct table *table)
{
    *table = (struct table){.base = object->l_addr};
    for (const ElfW(Dyn) *entry = object->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
        const void *pointer = pointer_of(object, entry->d_un.d_ptr);
        switch (entry->d_tag) {
        case DT_SYMTAB:
            table->symbols = (ElfW(Sym) *)(uintptr_t)pointer;
            break;
        case DT_STRTAB:
            table->strings = pointer;
            break;
        case DT_GNU_HASH:
            table->gnu_hash = pointer;
            break;
        case DT_HASH:
            table->hash = pointer;
            break;
        default:
            break;
        }
    }
    return table->symbols && table->strings && (table->gnu_hash || table->hash);
}

static bool defines(const struct table *table, const ElfW(Sym) *symbol, const char *name)
{
    unsigned type = ELF64_ST_TYPE(symbol->st_info);
    return symbol->st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_OBJECT) &&
           strcmp(table->strings + symbol->st_name, name) == 0;
}

static uint32_t gnu_hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (const unsigned char *at = (const unsigned char *)name; *at; at++)
        hash = hash * 33 + *at;
    return hash;
}

/* Calls `visit` for every definition of a name: a library may have several versions of one. */
static void each_definition(const struct table *table, const char *name,
                            void (*visit)(void *context, ElfW(Sym) *symbol), void *context)
{
    if (!table->gnu_hash) {
        for (uint32_t i = 0; i < table->hash[1]; i++)
            if (defines(table, &table->symbols[i], name))
                visit(context, &table->symbols[i]);
        return;
    }
    /* Header, Bloom filter of 64-bit words, buckets, then one hash per symbol from `first` on,
     * whose lowest bit marks the end of a bucket's chain. */
    const uint32_t *header = table->gnu_hash;
    uint32_t buckets = header[0], first = header[1], words = header[2], shift = header[3];
    const uint64_t *bloom = (const uint64_t *)(const void *)(header + 4);
    const uint32_t *bucket = (const uint32_t *)(const void *)(bloom + words);
    const uint32_t *chain = bucket + buckets;
    if (!buckets || !words)
        return;
    uint32_t hash = gnu_hash_of(name);
    uint64_t word = bloom[(hash / 64) % words];
    if (!(word >> (hash % 64) & word >> ((hash >> shift) % 64) & 1))
        return;
    uint32_t index = bucket[hash % buckets];
    if (index < first)
        return;
    for (;; index++) {
        uint32_t value = chain[index - first];
        if ((value | 1) == (hash | 1) && defines(table, &table->symbols[index], name))
            visit(context, &table->symbols[index]);
        if (value & 1)
            return;
    }
}

static void keep_first(void *context, ElfW(Sym) *symbol)
{
    ElfW(Sym) **found = context;
    if (!*found)
        *found = symbol;
}

void *symbols_address(const struct link_map *object, const char *name)
{
    struct table table;
    ElfW(Sym) *found = NULL;
    if (!read_table(object, &table))
        return NULL;
    each_definition(&table, name, keep_first, &found);
    return found ? (void *)(table.base + found->st_value) : NULL;
}

/* ---- rewriting ---- */

struct range {
    uintptr_t start, end;
};

static void widen(void *context, ElfW(Sym) *symbol)
{
    struct range *range = context;
    uintptr_t start = (uintptr_t)symbol & ~(uintptr_t)(PAGE - 1);
    uintptr_t end = ((uintptr_t)(symbol + 1) + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    range->start = start < range->start ? start : range->start;
    range->end = end > range->end ? end : range->end;
}

struct change {
    uintptr_t base;
    const struct symbol_hook *hook;
    function *instead;
};

static void change_symbol(void *context, ElfW(Sym) *symbol)
{
    const struct change *change = context;
    const struct symbol_hook *hook = change->hook;
    function *leads_to = change->instead;
    if (!leads_to) {
        *hook->real = (function *)(change->base + symbol->st_value);
        leads_to = hook->wrapper;
    }
    if (leads_to)
        symbol->st_value = (uintptr_t)leads_to - change->base;
}

/* Protection that the object asks for at an address, or -1. Older linkers put .dynsym beside the
 * code, so that taking execution away from its pages would end the program. */
static int protection_at(const struct link_map *object, uintptr_t address)
{
    /* msync fails with ENOMEM on what is not mapped, where a read would end the process. */
    if (!object->l_addr || msync((void *)object->l_addr, PAGE, MS_ASYNC))
        return -1;
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)object->l_addr;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_phoff + header->e_phnum * sizeof(ElfW(Phdr)) > PAGE)
        return -1;
    const ElfW(Phdr) *segment = (const ElfW(Phdr) *)(object->l_addr + header->e_phoff);
    for (unsigned i = 0; i < header->e_phnum; i++, segment++) {
        uintptr_t start = object->l_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && address >= start && address - start < segment->p_memsz)
            return ((segment->p_flags & PF_R) ? PROT_READ : 0) |
                   ((segment->p_flags & PF_W) ? PROT_WRITE : 0) |
                   ((segment->p_flags & PF_X) ? PROT_EXEC : 0);
    }
    return -1;
}

bool symbols_rewrite(const struct link_map *object, const struct symbol_hooks *hooks,
                     function *instead)
{
    struct table table;
    struct range range = {UINTPTR_MAX, 0};
    if (!read_table(object, &table))
        return false;
    for (size_t i = 0; i < hooks->count; i++)
        each_definition(&table, hooks->hooks[i].name, widen, &range);
    if (range.end == 0)
        return true;

    int protection = protection_at(object, (uintptr_t)table.symbols);
    size_t length = range.end - range.start;
    if (protection < 0 ||
        mprotect((void *)range.start, length, protection | PROT_READ | PROT_WRITE))
        return false;
    for (size_t i = 0; i < hooks->count; i++) {
        struct change change = {table.base, &hooks->hooks[i], instead};
        each_definition(&table, hooks->hooks[i].name, change_symbol, &change);
    }
    mprotect((void *)range.start, length, protection);
    return true;
}

function *symbols_wrapper(const struct symbol_hooks *hooks, function *address)
{
    for (size_t i = 0; i < hooks->count; i++)
        if (hooks->hooks[i].wrapper && *hooks->hooks[i].real == address)
            return hooks->hooks[i].wrapper;
    return address;
}
