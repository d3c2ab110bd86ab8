// SPDX-License-Identifier: GPL-2.0
/*
 * An owner of device-memory regions without a device, for tests of the dmem
 * cgroup controller. It does what a GPU driver does towards the controller,
 * on the orders of processes that write to /proc/dmemtest:
 *
 *   register NAME BYTES    a region comes, as when a driver loads
 *   unregister NAME        it goes; charges made before stay until uncharged
 *   charge NAME BYTES      charges the writer's cgroup, as an allocation does
 *   uncharge NAME BYTES    gives back one earlier charge of just that size
 *
 * A write answers with the controller's errno. Charges belong to the open file
 * and go when it is closed, as the buffers of a DRM file do.
 */
#include <linux/cgroup_dmem.h>
#include <linux/init.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#define NAME_BYTES 128
#define ORDER_BYTES 256

struct region {
	struct list_head link;
	struct dmem_cgroup_region *handle; /* NULL: known once, gone now */
	char name[NAME_BYTES];
};

struct charge {
	struct list_head link;
	const struct region *region;
	struct dmem_cgroup_pool_state *pool;
	u64 bytes;
};

static LIST_HEAD(regions); /* never shrinks: charges point into it */
static DEFINE_MUTEX(lock); /* of regions and of every file's charges */

static struct dmem_cgroup_region *announce(const char *name, u64 bytes)
{
#ifdef DMEM_REGISTER_TAKES_INIT /* Linux 7.3 and later */
	const struct dmem_cgroup_init init = { .size = bytes };

	return dmem_cgroup_register_region(&init, "%s", name);
#else
	return dmem_cgroup_register_region(bytes, "%s", name);
#endif
}

static struct region *find_region(const char *name)
{
	struct region *region;

	list_for_each_entry(region, &regions, link)
		if (!strcmp(region->name, name))
			return region;
	return NULL;
}

static int register_region(const char *name, u64 bytes)
{
	struct region *region = find_region(name);
	struct dmem_cgroup_region *handle;

	if (region && region->handle)
		return -EEXIST;
	if (!region) {
		region = kzalloc(sizeof(*region), GFP_KERNEL);
		if (!region)
			return -ENOMEM;
		strscpy(region->name, name, sizeof(region->name));
		list_add_tail(&region->link, &regions);
	}
	handle = announce(name, bytes);
	if (!handle)
		return -EINVAL; /* the controller's answer to no bytes */
	if (IS_ERR(handle))
		return PTR_ERR(handle);
	region->handle = handle;
	return 0;
}

static int unregister_region(struct region *region)
{
	dmem_cgroup_unregister_region(region->handle);
	region->handle = NULL;
	return 0;
}

static int take_charge(struct list_head *charges, const struct region *region, u64 bytes)
{
	struct charge *charge = kzalloc(sizeof(*charge), GFP_KERNEL);
	int error;

	if (!charge)
		return -ENOMEM;
	error = dmem_cgroup_try_charge(region->handle, bytes, &charge->pool, NULL);
	if (error) {
		kfree(charge);
		return error;
	}
	charge->region = region;
	charge->bytes = bytes;
	list_add_tail(&charge->link, charges);
	return 0;
}

static void give_back(struct charge *charge)
{
	list_del(&charge->link);
	dmem_cgroup_uncharge(charge->pool, charge->bytes);
	kfree(charge);
}

static int give_back_one(struct list_head *charges, const struct region *region, u64 bytes)
{
	struct charge *charge;

	list_for_each_entry(charge, charges, link)
		if (charge->region == region && charge->bytes == bytes) {
			give_back(charge);
			return 0;
		}
	return -ENOENT;
}

static int obey(struct list_head *charges, const char *verb, const char *name, u64 bytes)
{
	struct region *region;

	if (!strcmp(verb, "register"))
		return register_region(name, bytes);
	region = find_region(name);
	if (!region || !region->handle)
		return -ENODEV;
	if (!strcmp(verb, "unregister"))
		return unregister_region(region);
	if (!strcmp(verb, "charge"))
		return take_charge(charges, region, bytes);
	if (!strcmp(verb, "uncharge"))
		return give_back_one(charges, region, bytes);
	return -EINVAL;
}

static int owner_open(struct inode *inode, struct file *file)
{
	struct list_head *charges = kmalloc(sizeof(*charges), GFP_KERNEL);

	if (!charges)
		return -ENOMEM;
	INIT_LIST_HEAD(charges);
	file->private_data = charges;
	return nonseekable_open(inode, file);
}

static int owner_release(struct inode *inode, struct file *file)
{
	struct list_head *charges = file->private_data;
	struct charge *charge, *next;

	mutex_lock(&lock);
	list_for_each_entry_safe(charge, next, charges, link)
		give_back(charge);
	mutex_unlock(&lock);
	kfree(charges);
	return 0;
}

static ssize_t owner_write(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	char verb[16], name[NAME_BYTES];
	u64 bytes = 0;
	char *order;
	int fields, error;

	if (size > ORDER_BYTES)
		return -E2BIG;
	order = memdup_user_nul(from, size);
	if (IS_ERR(order))
		return PTR_ERR(order);
	fields = sscanf(order, "%15s %127s %llu", verb, name, &bytes);
	kfree(order);
	if (fields < 2)
		return -EINVAL;
	mutex_lock(&lock);
	error = obey(file->private_data, verb, name, bytes);
	mutex_unlock(&lock);
	return error ? error : size;
}

static const struct proc_ops owner_ops = {
	.proc_open = owner_open,
	.proc_release = owner_release,
	.proc_write = owner_write,
};

static int __init owner_init(void)
{
	return proc_create("dmemtest", 0666, NULL, &owner_ops) ? 0 : -ENOMEM;
}
late_initcall(owner_init);
