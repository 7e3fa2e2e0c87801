/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Maps, rings, task storage and user memory of the shim. Everything is freed by shim_reset(). */

#define SHIM_MAPS    32
#define SHIM_RECORDS 4096

struct shim_entry {
	struct shim_entry *next;
	void *key;
	void *values; /* one per CPU */
};

struct shim_map {
	void *id;
	const char *name;
	unsigned long type, key_bytes, value_bytes, max_entries, entries;
	struct shim_entry *first;
};

struct shim_record {
	void *ring;
	unsigned long bytes;
	unsigned long flags;
	void *data;
};

#define SHIM_CPUS 4
/* What a reserved record contains: a field that is not written keeps it. */
#define STALE 0xa5

struct shim_now shim_now;

static struct {
	struct shim_map maps[SHIM_MAPS];
	unsigned maps_used;
	struct shim_record records[SHIM_RECORDS];
	unsigned records_used;
	struct shim_entry *storage; /* key: map and task */
	/* Limits that a test sets. */
	struct {
		void *id;
		unsigned long entries;
	} limits[8];
	unsigned limits_used;
	void *full_ring;
	unsigned long available;
	int storage_is_busy;
} shim;

static struct shim_entry *shim_add(struct shim_entry **list, const void *key,
				   unsigned long key_bytes, unsigned long value_bytes)
{
	struct shim_entry *entry = calloc(1, sizeof(*entry));

	entry->key = malloc(key_bytes);
	memcpy(entry->key, key, key_bytes);
	entry->values = calloc(SHIM_CPUS, value_bytes);
	entry->next = *list;
	*list = entry;
	return entry;
}

static struct shim_entry **shim_find(struct shim_entry **list, const void *key, unsigned long bytes)
{
	for (; *list; list = &(*list)->next)
		if (!memcmp((*list)->key, key, bytes))
			break;
	return list;
}

static int shim_remove(struct shim_entry **found)
{
	struct shim_entry *entry = *found;

	if (!entry)
		return 0;
	*found = entry->next;
	free(entry->key);
	free(entry->values);
	free(entry);
	return 1;
}

/* Limits the entries of a map, as if it were full with them. */
static void shim_limit(void *id, unsigned long entries)
{
	shim.limits[shim.limits_used].id = id;
	shim.limits[shim.limits_used++].entries = entries;
	for (unsigned i = 0; i < shim.maps_used; i++)
		if (shim.maps[i].id == id)
			shim.maps[i].max_entries = entries;
}

struct shim_map *shim_map(void *id, const char *name, unsigned long type, unsigned long key_bytes,
			  unsigned long value_bytes, unsigned long max_entries)
{
	struct shim_map *map;

	for (unsigned i = 0; i < shim.maps_used; i++)
		if (shim.maps[i].id == id)
			return &shim.maps[i];
	map = &shim.maps[shim.maps_used++];
	*map = (struct shim_map){id, name, type, key_bytes, value_bytes, max_entries, 0, NULL};
	for (unsigned i = 0; i < shim.limits_used; i++)
		if (shim.limits[i].id == id)
			map->max_entries = shim.limits[i].entries;
	return map;
}

static bool is_array(const struct shim_map *map)
{
	return map->type == BPF_MAP_TYPE_ARRAY || map->type == BPF_MAP_TYPE_PERCPU_ARRAY;
}

static bool is_per_cpu(const struct shim_map *map)
{
	return map->type == BPF_MAP_TYPE_PERCPU_HASH || map->type == BPF_MAP_TYPE_PERCPU_ARRAY;
}

void *shim_lookup(struct shim_map *map, const void *key, unsigned cpu)
{
	struct shim_entry *entry = *shim_find(&map->first, key, map->key_bytes);

	if (!entry && is_array(map))
		entry = shim_add(&map->first, key, map->key_bytes, map->value_bytes);
	if (!entry)
		return NULL;
	return (char *)entry->values + (is_per_cpu(map) ? cpu * map->value_bytes : 0);
}

long shim_update(struct shim_map *map, const void *key, const void *value, unsigned long flags)
{
	struct shim_entry *entry = *shim_find(&map->first, key, map->key_bytes);

	if (entry && flags == BPF_NOEXIST)
		return -EEXIST;
	if (!entry) {
		if (map->entries >= map->max_entries && map->type != BPF_MAP_TYPE_LRU_HASH)
			return -7; /* E2BIG */
		entry = shim_add(&map->first, key, map->key_bytes, map->value_bytes);
		map->entries++;
	}
	memcpy((char *)entry->values + (is_per_cpu(map) ? shim_now.cpu * map->value_bytes : 0),
	       value, map->value_bytes);
	return 0;
}

long shim_delete(struct shim_map *map, const void *key)
{
	if (!shim_remove(shim_find(&map->first, key, map->key_bytes)))
		return -ENOENT;
	map->entries--;
	return 0;
}

void *shim_storage(void *id, unsigned long bytes, void *task, int create)
{
	void *key[2] = {id, task};
	struct shim_entry *entry = *shim_find(&shim.storage, key, sizeof(key));

	if (shim.storage_is_busy)
		return NULL;
	if (!entry && create)
		entry = shim_add(&shim.storage, key, sizeof(key), bytes);
	return entry ? entry->values : NULL;
}

long shim_storage_delete(void *id, void *task)
{
	void *key[2] = {id, task};

	return shim_remove(shim_find(&shim.storage, key, sizeof(key))) ? 0 : -ENOENT;
}

void *shim_reserve(void *ring, unsigned long bytes)
{
	struct shim_record *record = &shim.records[shim.records_used];

	if (ring == shim.full_ring || shim.records_used == SHIM_RECORDS)
		return NULL;
	*record = (struct shim_record){ring, bytes, 0, malloc(bytes)};
	memset(record->data, STALE, bytes);
	shim.records_used++;
	return record->data;
}

void shim_submit(void *data, unsigned long flags)
{
	for (unsigned i = 0; i < shim.records_used; i++)
		if (shim.records[i].data == data)
			shim.records[i].flags = flags;
}

void shim_discard(void *data)
{
	for (unsigned i = 0; i < shim.records_used; i++) {
		if (shim.records[i].data != data)
			continue;
		free(data);
		shim.records[i] = shim.records[--shim.records_used];
	}
}

/* Drops all records. */
static void shim_drop(void)
{
	while (shim.records_used)
		free(shim.records[--shim.records_used].data);
}

unsigned long shim_available(void *ring)
{
	(void)ring;
	return shim.available;
}

long shim_read_user(void *to, unsigned long bytes, const void *from)
{
	struct iovec local = {to, bytes}, remote = {(void *)from, bytes};

	if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (long)bytes)
		return 0;
	memset(to, 0, bytes);
	return -14; /* EFAULT */
}

long shim_read_user_string(char *to, unsigned long capacity, const void *from)
{
	for (unsigned long i = 0; i < capacity; i++) {
		if (shim_read_user(&to[i], 1, (const char *)from + i))
			return -14;
		if (!to[i])
			return i + 1;
	}
	to[capacity - 1] = 0;
	return capacity;
}

static void shim_reset(void)
{
	for (unsigned i = 0; i < shim.maps_used; i++)
		while (shim_remove(&shim.maps[i].first))
			;
	while (shim_remove(&shim.storage))
		;
	shim_drop();
	memset(&shim, 0, sizeof(shim));
	memset(&shim_now, 0, sizeof(shim_now));
}
