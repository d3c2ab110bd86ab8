/* Which device a handle of ROCr belongs to. Devices are numbered in ROCr's agent order. */
#ifndef AMVGPU_DEVICES_H
#define AMVGPU_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

enum handle_kind { HANDLE_AGENT, HANDLE_POOL, HANDLE_REGION };

enum { DEVICE_HOST = -1, DEVICE_UNKNOWN = -2 };

/* PCI address as ROCr gives it: domain, and bus, device and function in 16 bits. */
struct pci_address {
    uint32_t domain;
    uint32_t location;
};

/* Enters a handle. `device` is an index, or DEVICE_HOST. */
void devices_enter(enum handle_kind kind, uint64_t handle, int device);
void devices_enter_address(unsigned device, struct pci_address address);

/* Index, DEVICE_HOST for host memory, DEVICE_UNKNOWN for a handle that was never entered. */
int devices_of(enum handle_kind kind, uint64_t handle);

/* The one device at a PCI address; DEVICE_UNKNOWN for none and for several, as partitions of one
 * GPU are. */
int devices_at(struct pci_address address);

/* To learn which device HIP asks about: between the two calls `devices_saw_query` notes, for this
 * thread, the device whose free memory was asked for; DEVICE_UNKNOWN for none. */
void devices_watch_queries(void);
void devices_saw_query(int device);
int devices_last_query(void);

#endif
