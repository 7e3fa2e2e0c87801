/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* launch.h, copy.h and kernel_name.h: launches and copies, counted in maps, and names of kernels.
 */

#define KERNEL 0xc000

static struct vs_launches *launches_on(__u64 target, __u16 graph, unsigned cpu)
{
	struct vs_launch_key key = {target, PID, graph, own_exec_gen(), own_start()};

	return bpf_map_lookup_percpu_elem(&launches, &key, cpu);
}

/* Returns a count of a kernel on the current CPU; 0 if it was not launched there. */
#define LAUNCHED(kernel, field)                                                                    \
	(launches_on(kernel, 0, shim_now.cpu) ? launches_on(kernel, 0, shim_now.cpu)->field : 0)

/* Enters cuLaunchKernel with a grid of that width. */
static int enter_kernel(__u64 kernel, __u32 grid, __u64 stream)
{
	PT_REGS_PARM1(&regs) = kernel;
	PT_REGS_PARM2(&regs) = grid;
	PT_REGS_PARM3(&regs) = PT_REGS_PARM4(&regs) = PT_REGS_PARM5(&regs) = 1;
	PT_REGS_PARM6(&regs) = 1;
	PT_REGS_SP(&regs) = BASE_SP;
#if defined(__TARGET_ARCH_arm64)
	PT_REGS_PARM7(&regs) = 1;
	PT_REGS_PARM8(&regs) = 0;
	user_stack[1024] = stream;
#else
	user_stack[1025] = 1;
	user_stack[1026] = 0;
	user_stack[1027] = stream;
#endif
	return enter_launch(cuLaunchKernel);
}

/* Launches, with a result if it is checked; returns whether it is. */
static bool launch(__u64 kernel, __u32 grid, int result)
{
	if (enter_kernel(kernel, grid, 0))
		return 0;
	leave_launch(cuLaunchKernel, result);
	return 1;
}

TEST(trusted_kernels_are_checked_once_in_a_while)
{
	unsigned checked = 0;

	for (unsigned i = 0; i < VS_TRUSTED_AFTER; i++)
		CHECK(launch(KERNEL, 7, 0));
	for (unsigned i = 0; i < 10 * VS_CHECK_EVERY; i++)
		checked += launch(KERNEL, 7, 0);
	CHECK_EQ(checked, 10);
	CHECK_EQ(LAUNCHED(KERNEL, calls), VS_TRUSTED_AFTER + 10 * VS_CHECK_EVERY);
	CHECK_EQ(LAUNCHED(KERNEL, checked), VS_TRUSTED_AFTER + 10);
	/* A new shape is checked, and so is everything after a failure. */
	CHECK(launch(KERNEL, 8, 1));
	CHECK_EQ(LAUNCHED(KERNEL, failed), 1);
	CHECK_EQ(call_record(0)->args[0], KERNEL);
	CHECK(launch(KERNEL, 8, 0));
	load_config.check_every_launch = 1;
	for (unsigned i = 0; i < 2 * VS_CHECK_EVERY; i++)
		CHECK(launch(KERNEL, 8, 0));
}

TEST(rarest_shape_makes_room_for_a_new_one)
{
	struct vs_launches *sum;

	for (__u32 grid = 1; grid <= VS_SHAPES; grid++)
		for (__u32 i = 0; i <= grid; i++)
			launch(KERNEL, grid, 0);
	sum = launches_on(KERNEL, 0, 0);
	CHECK_EQ(sum->other, 0);
	launch(KERNEL, 99, 0);
	/* Two launches with a grid of 1 were the rarest. */
	CHECK_EQ(sum->other, 2);
	CHECK_EQ(sum->shapes[sum->last].grid[0], 99);
	CHECK_EQ(sum->shapes[sum->last].count, 1);
	/* A thread that finds the writer at work counts no shape. */
	sum->busy = 1;
	launch(KERNEL, 98, 0);
	CHECK_EQ(sum->other, 3);
	CHECK_EQ(sum->shapes[sum->last].grid[0], 99);
	CHECK_EQ(sum->calls, 2 + 3 + 4 + 5 + 2);
}

TEST(captured_launches_are_counted_as_such_unless_they_fail)
{
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	enter_kernel(KERNEL, 1, STREAM);
	leave_launch(cuLaunchKernel, 0);
	CHECK_EQ(LAUNCHED(KERNEL, captured), 1);
	enter_kernel(KERNEL, 1, STREAM);
	leave_launch(cuLaunchKernel, 1);
	CHECK_EQ(LAUNCHED(KERNEL, captured), 1);
	CHECK_EQ(LOST(launches), 0);
	/* On a stream that may have joined the capture. */
	enter_kernel(KERNEL, 1, STREAM + 8);
	leave_launch(cuLaunchKernel, 0);
	CHECK_EQ(LAUNCHED(KERNEL, captured), 2);
	CHECK_EQ(LOST(launches), 1);
	/* Without session probes the return side is never run. */
	load_config.can_skip_returns = 0;
	CHECK_EQ(enter_kernel(KERNEL, 1, STREAM), 1);
	CHECK_EQ(LAUNCHED(KERNEL, captured), 3);
}

TEST(unreadable_configuration_is_a_launch_of_unknown_shape)
{
	PT_REGS_PARM1(&regs) = UNREADABLE;
	PT_REGS_PARM2(&regs) = KERNEL;
	enter_launch(cuLaunchKernelEx);
	CHECK_EQ(LAUNCHED(KERNEL, calls), 1);
	CHECK_EQ(LAUNCHED(KERNEL, other), 1);
	/* While a stream captures, it is unknown whether it is launched. */
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	PT_REGS_PARM1(&regs) = UNREADABLE;
	PT_REGS_PARM2(&regs) = KERNEL;
	CHECK_EQ(enter_launch(cuLaunchKernelEx), 1);
	CHECK_EQ(LAUNCHED(KERNEL, calls), 1);
	CHECK_EQ(LOST(launches), 1);
}

TEST(list_of_launches_is_limited)
{
	static struct listed_launch list[LISTED_LAUNCHES + 1];

	for (unsigned i = 0; i <= LISTED_LAUNCHES; i++)
		list[i] = (struct listed_launch){.function = KERNEL, .grid = {i % 2 + 1, 1, 1}};
	PT_REGS_PARM1(&regs) = (__u64)list;
	PT_REGS_PARM2(&regs) = 3;
	CHECK_EQ(enter_launch(cuLaunchCooperativeKernelMultiDevice), 1);
	CHECK_EQ(LAUNCHED(KERNEL, calls), 3);
	CHECK_EQ(LOST(launches), 0);
	PT_REGS_PARM2(&regs) = LISTED_LAUNCHES + 1;
	enter_launch(cuLaunchCooperativeKernelMultiDevice);
	CHECK_EQ(LAUNCHED(KERNEL, calls), 3 + LISTED_LAUNCHES);
	CHECK_EQ(LOST(launches), 1);
	PT_REGS_PARM1(&regs) = UNREADABLE - sizeof(*list);
	PT_REGS_PARM2(&regs) = 2;
	memcpy((void *)(UNREADABLE - sizeof(*list)), list, sizeof(*list));
	enter_launch(cuLaunchCooperativeKernelMultiDevice);
	CHECK_EQ(LAUNCHED(KERNEL, calls), 4 + LISTED_LAUNCHES);
	CHECK_EQ(LOST(launches), 2);
}

TEST(launches_that_do_not_fit_are_lost)
{
	shim_limit(&launches, 1);
	CHECK(launch(KERNEL, 1, 0));
	CHECK(!launch(KERNEL + 8, 1, 0));
	CHECK_EQ(LOST(launches), 1);
	DO_CALL(cuGraphLaunch, 0, 0xe);
	CHECK_EQ(LOST(launches), 2);
	shim.full_ring = &records;
	launch(KERNEL, 2, 1);
	CHECK_EQ(LOST(failures), 1);
}

TEST(graph_launches_have_a_key_of_their_own)
{
	launch(KERNEL, 1, 0);
	DO_CALL(cuGraphLaunch, 0, KERNEL);
	DO_CALL(cuGraphLaunch, 1, KERNEL);
	CHECK_EQ(LAUNCHED(KERNEL, calls), 1);
	CHECK_EQ(launches_on(KERNEL, 1, 0)->calls, 2);
	CHECK_EQ(launches_on(KERNEL, 1, 0)->failed, 1);
}

static char *string_of(char *end, unsigned length)
{
	char *text = end - length - 1;

	memset(text, 'k', length);
	text[length] = 0;
	return text;
}

TEST(names_are_truncated_at_their_limits)
{
	static char buffer[VS_LONG_NAME + 64];
	struct {
		unsigned length, sent;
		bool truncated;
	} cases[] = {
		{0, 0, 0},
		{VS_SHORT_NAME - 2, VS_SHORT_NAME - 2, 0},
		{VS_SHORT_NAME - 1, VS_SHORT_NAME - 1, 0},
		{VS_SHORT_NAME, VS_SHORT_NAME, 0},
		{VS_LONG_NAME - 2, VS_LONG_NAME - 2, 0},
		{VS_LONG_NAME, VS_LONG_NAME - 1, 1},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *text = string_of(buffer + sizeof(buffer), cases[i].length);
		struct vs_kernel_name *name;
		__u64 out = KERNEL;

		DO_CALL(cuModuleGetFunction, 0, (__u64)&out, 1, (__u64)text);
		name = record(&records, VS_KERNEL_NAME, i);
		CHECK_EQ(name->kernel, KERNEL);
		CHECK_EQ(name->text, text);
		CHECK_EQ(name->length, cases[i].sent);
		CHECK_EQ(!!(name->flags & VS_NAME_TRUNCATED), cases[i].truncated);
		CHECK_EQ(memcmp(name + 1, text, cases[i].sent), 0);
	}
	CHECK_EQ(count_records(&records, VS_CALL), 0);
}

TEST(unreadable_names_have_no_bytes)
{
	struct vs_kernel_name *name;
	__u64 out = KERNEL;

	DO_CALL(cuModuleGetFunction, 0, (__u64)&out, 1, UNREADABLE);
	name = record(&records, VS_KERNEL_NAME, 0);
	CHECK_EQ(name->length, 0);
	CHECK_EQ(name->flags, 0);
	/* A string that runs into memory that cannot be read. */
	memset((char *)UNREADABLE - 8, 'k', 8);
	DO_CALL(cuModuleGetFunction, 0, (__u64)&out, 1, UNREADABLE - 8);
	name = record(&records, VS_KERNEL_NAME, 1);
	CHECK_EQ(name->length, 0);
	/* Without a handle there is nothing to name. */
	DO_CALL(cuModuleGetFunction, 0, UNREADABLE, 1, (__u64) "k");
	out = 0;
	DO_CALL(cuModuleGetFunction, 0, (__u64)&out, 1, (__u64) "k");
	CHECK_EQ(count_records(&records, VS_KERNEL_NAME), 2);
	shim.full_ring = &records;
	out = KERNEL;
	DO_CALL(cuModuleGetFunction, 0, (__u64)&out, 1, (__u64) "k");
	CHECK_EQ(LOST(other), 1);
}

TEST(name_has_the_launches_of_the_kernel_before_on_all_cpus)
{
	struct vs_kernel_name *name;
	__u64 out = KERNEL;

	for (unsigned cpu = 0; cpu < SHIM_CPUS; cpu++) {
		shim_now.cpu = cpu;
		for (unsigned i = 0; i <= cpu; i++)
			launch(KERNEL, 1, i == 1);
	}
	shim_now.cpu = 1;
	DO_CALL(cuModuleGetFunction, 0, (__u64)&out, 1, (__u64) "next");
	name = record(&records, VS_KERNEL_NAME, 0);
	CHECK_EQ(name->calls, 1 + 2 + 3 + 4);
	CHECK_EQ(name->failed, 3);
	CHECK_EQ(name->checked, 10);
	/* bpf_map_lookup_percpu_elem() may be missing. */
	load_config.can_skip_returns = 0;
	DO_CALL(cuModuleGetFunction, 0, (__u64)&out, 1, (__u64) "next");
	CHECK_EQ(((struct vs_kernel_name *)record(&records, VS_KERNEL_NAME, 1))->calls, 0);
}

TEST(name_is_read_from_the_object_at_the_first_launch)
{
	__u64 object[2] = {0, (__u64) "found"};
	struct vs_kernel_name *name;

	launch((__u64)object, 1, 0);
	launch((__u64)object, 1, 0);
	CHECK_EQ(count_records(&records, VS_KERNEL_NAME), 1);
	name = record(&records, VS_KERNEL_NAME, 0);
	CHECK_EQ(name->flags, VS_NAME_FROM_MEMORY);
	CHECK_EQ(name->length, 5);
	object[1] = 0;
	launch((__u64)object - 1, 1, 0);
	launch(UNREADABLE, 1, 0);
	CHECK_EQ(LAUNCHED(UNREADABLE, calls), 1);
}

static struct vs_copies *copied(__u8 direction, __u8 asynchronous, __u64 to, __u64 from)
{
	struct vs_copy_key key = {PID, direction, asynchronous, own_exec_gen(),
				  to,  from,	  own_start()};

	return bpf_map_lookup_elem(&copies, &key);
}

#define COPIED(direction, asynchronous, field)                                                     \
	(copied(direction, asynchronous, 0, 0) ? copied(direction, asynchronous, 0, 0)->field : 0)

/* Returns the class as its definition says: quarters of a log2 from 1 KiB/s on. */
static __u32 class_of(double rate)
{
	__u32 class = 1;

	if (rate < 1024)
		return 0;
	while (rate >= 2048) {
		rate /= 2;
		class += 4;
	}
	class += (__u32)(rate / 256) - 4;
	return class < VS_BANDWIDTHS ? class : VS_BANDWIDTHS - 1;
}

TEST(bandwidth_class_is_a_quarter_of_a_log2)
{
	for (unsigned bit = 0; bit < 40; bit++) {
		for (unsigned quarter = 4; quarter < 8; quarter++) {
			__u64 rate = (1ULL << bit) * quarter / 4;

			CHECK_EQ(bandwidth_class(rate, 1000000000), class_of(rate));
		}
	}
	CHECK_EQ(bandwidth_class(0, 1), 0);
	CHECK_EQ(bandwidth_class(1023, 1000000000), 0);
	CHECK_EQ(bandwidth_class(1024, 1000000000), 1);
	/* No time, and no overflow. */
	CHECK_EQ(bandwidth_class(1 << 20, 0), class_of((1 << 20) * 1e9));
	CHECK_EQ(bandwidth_class(~0ULL >> 30, 1), VS_BANDWIDTHS - 1);
	CHECK_EQ(bandwidth_class(1ULL << 40, 1000), class_of((1ULL << 40) * 1e6));
}

TEST(direction_of_a_described_copy)
{
	struct {
		__u32 from, to, direction;
	} cases[] = {
		{MEMORY_HOST, MEMORY_DEVICE, VS_H2D},	   {MEMORY_DEVICE, MEMORY_HOST, VS_D2H},
		{MEMORY_DEVICE, MEMORY_DEVICE, VS_D2D},	   {MEMORY_HOST, MEMORY_HOST, VS_H2H},
		{MEMORY_ARRAY, MEMORY_HOST, VS_ARRAY},	   {MEMORY_UNIFIED, MEMORY_ARRAY, VS_ARRAY},
		{MEMORY_HOST, MEMORY_UNIFIED, VS_UNIFIED},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		CHECK_EQ(direction_between(cases[i].from, cases[i].to), cases[i].direction);
}

TEST(copies_are_summed_by_direction)
{
	DO_CALL(cuMemcpyHtoD_v2, 0, 0xd000, 0x1000, 100);
	DO_CALL(cuMemcpyHtoD_v2, 0, 0xd000, 0x1000, 28);
	DO_CALL(cuMemcpyHtoD_v2, 1, 0xd000, 0x1000, 4);
	DO_CALL(cuMemcpyHtoDAsync_v2, 0, 0xd000, 0x1000, 1, STREAM);
	DO_CALL(cuMemsetD2D16_v2, 0, 0xd000, 64, 0, 10, 3);
	CHECK_EQ(COPIED(VS_H2D, 0, calls), 2);
	CHECK_EQ(COPIED(VS_H2D, 0, bytes), 128);
	CHECK(COPIED(VS_H2D, 0, nanos) > 0);
	CHECK_EQ(COPIED(VS_H2D, 1, nanos), 0);
	CHECK_EQ(COPIED(VS_MEMSET, 0, bytes), 60);
	/* Only the failed one is a record. */
	CHECK_EQ(count_records(&records, VS_CALL), 1);
}

TEST(captured_copies_do_not_count)
{
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	DO_CALL(cuMemcpyHtoDAsync_v2, 0, 0xd000, 0x1000, 1, STREAM);
	CHECK_EQ(COPIED(VS_H2D, 1, calls), 0);
	CHECK_EQ(LOST(copies), 0);
	DO_CALL(cuMemcpyHtoDAsync_v2, 0, 0xd000, 0x1000, 1, STREAM + 8);
	CHECK_EQ(LOST(copies), 1);
	DO_CALL(cuMemcpyHtoD_v2, 0, 0xd000, 0x1000, 1);
	CHECK_EQ(COPIED(VS_H2D, 0, calls), 1);
}

TEST(described_copies_have_their_extent)
{
	__u64 flat[16] = {}, deep[32] = {};

	flat[2] = MEMORY_HOST;
	flat[9] = MEMORY_DEVICE;
	flat[14] = 10;
	flat[15] = 3;
	DO_CALL(cuMemcpy2D_v2, 0, (__u64)flat);
	CHECK_EQ(COPIED(VS_H2D, 0, bytes), 30);
	deep[4] = MEMORY_DEVICE;
	deep[15] = MEMORY_DEVICE;
	deep[22] = 10;
	deep[23] = 3;
	deep[24] = 2;
	DO_CALL(cuMemcpy3D_v2, 0, (__u64)deep);
	CHECK_EQ(COPIED(VS_D2D, 0, bytes), 60);
	DO_CALL(cuMemcpy3DPeer, 0, (__u64)deep);
	CHECK_EQ(COPIED(VS_PEER, 0, bytes), 60);
	DO_CALL(cuMemcpy2D_v2, 0, UNREADABLE);
	CHECK_EQ(LOST(copies), 1);
}

TEST(batches_are_limited)
{
	static __u64 to[BATCH + 2], from[BATCH + 2], sizes[BATCH + 2];
	struct vs_copies *sum;

	for (unsigned i = 0; i < BATCH + 2; i++)
		sizes[i] = 2;
	DO_CALL(cuMemcpyBatchAsync, 0, (__u64)to, (__u64)from, (__u64)sizes, BATCH + 2);
	sum = copied(VS_UNIFIED, 1, 1, 1);
	CHECK_EQ(sum->calls, BATCH);
	CHECK_EQ(sum->bytes, 2 * BATCH);
	CHECK_EQ(LOST(copies), 2);
	DO_CALL(cuMemcpyBatchAsync, 0, (__u64)to, UNREADABLE, (__u64)sizes, 3);
	CHECK_EQ(sum->calls, BATCH);
	CHECK_EQ(LOST(copies), 5);
	DO_CALL(cuMemcpyBatchAsync, 0, (__u64)to, (__u64)from, (__u64)sizes, 0);
	CHECK_EQ(LOST(copies), 5);
}

TEST(batches_of_volumes_count_pointers_only)
{
	static __u64 ops[BATCH + 1][14];

	for (unsigned i = 0; i <= BATCH; i++) {
		ops[i][0] = ops[i][5] = OPERAND_POINTER;
		ops[i][10] = 4;
		ops[i][11] = ops[i][12] = 2;
	}
	ops[1][5] = 2; /* an array */
	DO_CALL(cuMemcpy3DBatchAsync, 0, BATCH + 1, (__u64)ops);
	CHECK_EQ(copied(VS_UNIFIED, 1, 1, 1)->calls, BATCH - 1);
	CHECK_EQ(copied(VS_UNIFIED, 1, 1, 1)->bytes, 16 * (BATCH - 1));
	CHECK_EQ(LOST(copies), 2);
}

TEST(copies_that_do_not_fit_are_lost)
{
	shim_limit(&copies, 0);
	DO_CALL(cuMemcpyHtoD_v2, 0, 0xd000, 0x1000, 100);
	CHECK_EQ(LOST(copies), 1);
}
