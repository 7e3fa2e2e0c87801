/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Attaches one program of floor.bpf.o to cuMemAlloc_v2 and cuMemFree_v2, and reads its records.
 *
 * usage: floor empty|record|paired|naive OBJECT LIBRARY ALLOCATE_OFFSET FREE_OFFSET [REPORT_MS]
 *
 * The offsets are the file offsets of the probes.
 *
 * `naive` is `paired` with a plain ledger: a hash table of live allocations that is scanned at
 * every report. Prints "ready" when attached, and one line of JSON at its end (SIGINT, SIGTERM).
 */
#include <errno.h>
#include <linux/types.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include "floor.h"

static volatile sig_atomic_t ended;

static void on_signal(int signal)
{
	(void)signal;
	ended = 1;
}

/* A slot of the hash table of live allocations; deleted entries leave a tombstone. */
struct live {
	__u64 address;
	__u64 bytes;
	__u64 at;
	__u32 tid;
	__u32 used; /* 0 empty, 1 live, 2 deleted */
};

static struct live *table;
static size_t slots, used, live_count;
static int naive;
static __u64 received, allocations, frees, reports, report_nanos;

static __u64 now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static struct live *find_slot(struct live *in, size_t count, __u64 address)
{
	size_t slot = (address * 0x9e3779b97f4a7c15ull >> 20) & (count - 1);
	struct live *deleted = NULL;

	for (;; slot = (slot + 1) & (count - 1)) {
		if (in[slot].used == 1 && in[slot].address == address)
			return &in[slot];
		if (in[slot].used == 2 && !deleted)
			deleted = &in[slot];
		if (in[slot].used == 0)
			return deleted ? deleted : &in[slot];
	}
}

static void grow(void)
{
	size_t more = live_count * 4 < 1024 ? 1024 : 1;
	struct live *larger;

	while (more < live_count * 4)
		more *= 2;
	larger = calloc(more, sizeof(*larger));
	if (!larger) {
		fprintf(stderr, "floor: out of memory for %zu allocations\n", more);
		exit(1);
	}
	for (size_t i = 0; i < slots; i++)
		if (table[i].used == 1)
			*find_slot(larger, more, table[i].address) = table[i];
	free(table);
	table = larger;
	slots = more;
	used = live_count;
}

static void apply(const struct floor_record *record)
{
	struct live *slot;

	if ((used + 1) * 2 > slots)
		grow();
	slot = find_slot(table, slots, record->address);
	if (record->function == FLOOR_FREE) {
		if (slot->used == 1) {
			slot->used = 2;
			live_count--;
		}
		return;
	}
	used += slot->used == 0;
	live_count += slot->used != 1;
	*slot = (struct live){
		.address = record->address,
		.bytes = record->bytes,
		.at = record->at,
		.tid = record->tid,
		.used = 1,
	};
}

static int handle_record(void *context, void *data, size_t size)
{
	const struct floor_record *record = data;

	(void)context;
	if (size < sizeof(*record))
		return 0;
	received++;
	if (record->result)
		return 0;
	allocations += record->function == FLOOR_ALLOCATE;
	frees += record->function == FLOOR_FREE;
	if (naive)
		apply(record);
	return 0;
}

/* Scans all slots for the total and the ten largest allocations. */
static void report(void)
{
	struct live top[10] = {};
	__u64 sum = 0, start = now();

	for (size_t i = 0; i < slots; i++) {
		if (table[i].used != 1)
			continue;
		sum += table[i].bytes;
		for (int rank = 0; rank < 10; rank++) {
			if (table[i].bytes > top[rank].bytes) {
				memmove(top + rank + 1, top + rank, (9 - rank) * sizeof(*top));
				top[rank] = table[i];
				break;
			}
		}
	}
	printf("%zu live, %llu bytes\n", live_count, sum);
	for (int rank = 0; rank < 10 && top[rank].bytes; rank++)
		printf("  0x%llx %llu bytes, thread %u\n", top[rank].address, top[rank].bytes,
		       top[rank].tid);
	fflush(stdout);
	reports++;
	report_nanos += now() - start;
}

static struct bpf_link *attach(struct bpf_object *object, const char *mode, char **argv)
{
	unsigned long offsets[] = {strtoul(argv[4], NULL, 0), strtoul(argv[5], NULL, 0)};
	__u64 functions[] = {FLOOR_ALLOCATE, FLOOR_FREE};
	struct bpf_program *program;
	LIBBPF_OPTS(bpf_uprobe_multi_opts, options, .offsets = offsets, .cookies = functions,
		    .cnt = 2, .session = true);

	bpf_object__for_each_program(program, object)
		bpf_program__set_autoload(program, !strcmp(bpf_program__name(program), mode));
	if (bpf_object__load(object))
		return NULL;
	program = bpf_object__find_program_by_name(object, mode);
	return bpf_program__attach_uprobe_multi(program, -1, argv[3], NULL, &options);
}

static __u64 lost_records(struct bpf_object *object)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, ".bss");
	__u64 value = 0;
	__u32 key = 0;

	if (map)
		bpf_map_lookup_elem(bpf_map__fd(map), &key, &value);
	return value;
}

static void read_until_ended(struct ring_buffer *ring, __u64 interval)
{
	__u64 due = now() + interval;

	while (!ended) {
		ring_buffer__poll(ring, 10);
		ring_buffer__consume(ring);
		if (naive && interval && now() >= due) {
			due += interval;
			report();
		}
	}
	ring_buffer__consume(ring);
}

int main(int argc, char **argv)
{
	struct bpf_object *object;
	struct bpf_link *link;
	struct ring_buffer *ring;

	if (argc < 6) {
		fprintf(stderr, "usage: floor empty|record|paired|naive OBJECT LIBRARY "
				"ALLOCATE_OFFSET FREE_OFFSET [REPORT_MS]\n");
		return 2;
	}
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	naive = !strcmp(argv[1], "naive");
	object = bpf_object__open_file(argv[2], NULL);
	if (!object)
		return 1;
	link = attach(object, naive ? "paired" : argv[1], argv);
	if (!link) {
		fprintf(stderr, "floor: cannot attach: %s; session probes need Linux 6.13\n",
			strerror(errno));
		return 1;
	}
	ring = ring_buffer__new(bpf_object__find_map_fd_by_name(object, "records"), handle_record,
				NULL, NULL);
	if (!ring)
		return 1;
	puts("ready");
	fflush(stdout);
	read_until_ended(ring, (argc > 6 ? strtoull(argv[6], NULL, 0) : 0) * 1000000);
	bpf_link__destroy(link);
	ring_buffer__consume(ring);
	printf("{\"received\": %llu, \"allocations\": %llu, \"frees\": %llu, \"live\": %zu, "
	       "\"lost\": %llu, \"reports\": %llu, \"report_nanos\": %llu}\n",
	       received, allocations, frees, live_count, lost_records(object), reports, report_nanos);
	return 0;
}
