/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* call.h, loss.h and torch.h: records of calls and blocks, nesting, and the losses of each class.
 */

TEST(call_is_recorded_in_full)
{
	__u64 out = 0xd000;
	struct vs_call *call;

	ENTER(cuMemAlloc_v2, (__u64)&out, 4096, 3, 4, 5, 6);
	shim_now.time += 1000;
	leave(cuMemAlloc_v2, 0);
	call = call_record(0);
	CHECK_EQ(call->head.hook, cuMemAlloc_v2);
	CHECK_EQ(call->head.pid, PID);
	CHECK(call->head.at >= call->entered + 1000);
	CHECK_EQ(call->args[1] == 4096 && call->args[5] == 6, 1);
	CHECK_EQ(call->outs[0], out);
	CHECK_EQ(call->outs[1], 0);
	CHECK_EQ(call->flags, VS_CONTEXT_KNOWN);
	CHECK_EQ(call->context | call->stack | call->python, 0);
	CHECK_EQ(call->device, -1);
}

TEST(out_values_of_a_failed_call_are_not_read)
{
	__u64 out = 0xd000;

	DO_CALL(cuMemAlloc_v2, 2, (__u64)&out, 4096);
	CHECK_EQ(call_record(0)->head.result, 2);
	CHECK_EQ(call_record(0)->outs[0], 0);
	DO_CALL(cuMemAlloc_v2, 2, UNREADABLE, 4096);
	CHECK_EQ(call_record(1)->flags & VS_OUT_UNREADABLE, 0);
}

TEST(descriptor_is_copied_and_padded_with_zeros)
{
	__u64 out = 1, array[3] = {10, 20, 30};
	struct vs_call_descriptor *full;

	DO_CALL(cuArrayCreate_v2, 0, (__u64)&out, (__u64)array);
	full = record(&records, VS_CALL_DESCRIPTOR, 0);
	CHECK_EQ(memcmp(full->descriptor, array, sizeof(array)), 0);
	for (unsigned i = sizeof(array); i < sizeof(full->descriptor); i++)
		CHECK_EQ(full->descriptor[i], 0);
	DO_CALL(cuArrayCreate_v2, 0, (__u64)&out, UNREADABLE);
	full = record(&records, VS_CALL_DESCRIPTOR, 1);
	CHECK(full->call.flags & VS_OUT_UNREADABLE);
	CHECK_EQ(full->descriptor[0], 0);
}

TEST(exported_and_imported_files_have_one_name)
{
	int file = 2;
	__u64 handle = 1, stack[8] = {0};
	void *files[3] = {NULL, NULL, &file};
	struct fdtable___x table = {.max_fds = 3, .fd = files};
	struct files_struct___x owner = {.fdt = &table};
	struct vs_call_descriptor *full;

	main_thread.task.files = &owner;
	DO_CALL(cuMemExportToShareableHandle, 0, (__u64)&file, 5, VS_POSIX_FILE, 0);
	DO_CALL(cuMemImportFromShareableHandle, 0, (__u64)&handle, 2, VS_POSIX_FILE);
	for (unsigned i = 0; i < 2; i++) {
		full = record(&records, VS_CALL_DESCRIPTOR, i);
		CHECK_EQ(full->call.outs[1], (__u64)&file);
		CHECK_EQ(full->descriptor[0], 0);
	}
	/* Not open. */
	DO_CALL(cuMemImportFromShareableHandle, 0, (__u64)&handle, 3, VS_POSIX_FILE);
	CHECK_EQ(((struct vs_call_descriptor *)record(&records, VS_CALL_DESCRIPTOR, 2))
			 ->call.outs[1],
		 0);
	/* A handle instead of a file. */
	stack[7] = 77;
	DO_CALL(cuMemImportFromShareableHandle, 0, (__u64)&handle, (__u64)stack, VS_FABRIC);
	full = record(&records, VS_CALL_DESCRIPTOR, 3);
	CHECK_EQ(full->call.outs[1], 0);
	CHECK_EQ(memcmp(full->descriptor, stack, sizeof(stack)), 0);
}

TEST(calls_inside_an_allocation_do_not_count)
{
	ENTER_AT(0, cuMemAllocManaged, 0, 1);
	ENTER_AT(10, cuMemAlloc_v2, 0, 2);
	leave(cuMemAlloc_v2, 0);
	leave(cuMemAllocManaged, 0);
	CHECK_EQ(count_records(&records, VS_CALL), 1);
	CHECK_EQ(call_record(0)->head.hook, cuMemAllocManaged);
	/* Those inside context calls do. */
	ENTER_AT(0, cuDevicePrimaryCtxReset_v2, 0);
	ENTER_AT(10, cuMemFree_v2, 1);
	leave(cuMemFree_v2, 0);
	leave(cuDevicePrimaryCtxReset_v2, 0);
	CHECK_EQ(count_records(&records, VS_CALL), 3);
	CHECK_EQ(call_record(1)->head.hook, cuMemFree_v2);
}

TEST(object_calls_hide_only_inner_object_calls)
{
	__u64 out = 1;

	ENTER_AT(0, cuModuleLoad, (__u64)&out);
	ENTER_AT(10, cuModuleLoadData, (__u64)&out);
	leave(cuModuleLoadData, 0);
	ENTER_AT(10, cuMemAlloc_v2, (__u64)&out, 1);
	leave(cuMemAlloc_v2, 0);
	leave(cuModuleLoad, 0);
	CHECK_EQ(count_records(&records, VS_CALL), 2);
	CHECK_EQ(call_record(0)->head.hook, cuMemAlloc_v2);
	CHECK_EQ(call_record(1)->head.hook, cuModuleLoad);
}

TEST(calls_that_were_left_by_longjmp_are_dropped)
{
	ENTER_AT(10, cuCtxGetCurrent, 0);
	ENTER_AT(20, cuMemAlloc_v2, 0, 1);
	ENTER_AT(30, cuMemAlloc_v2, 0, 1);
	/* Above the two inner calls, inside the outer one. */
	ENTER_AT(15, cuMemFree_v2, 1);
	CHECK_EQ(thread_find()->inflight, 2);
	leave(cuMemFree_v2, 0);
	CHECK_EQ(call_record(0)->head.hook, cuMemFree_v2);
	/* Both are inside of each other: whether the driver carried them out is unknown. */
	CHECK_EQ(LOST(allocations), 1);
	CHECK_EQ(LOST(frees), 0);
	ENTER_AT(0, cuMemAlloc_v2, 0, 1);
	CHECK_EQ(thread_find()->inflight, 1);
	/* The query has no effect. */
	CHECK_EQ(LOST(allocations), 1);
	CHECK_EQ(LOST(other), 0);
	/* At the same place again: the first one was left. */
	ENTER_AT(0, cuMemAlloc_v2, 0, 1);
	CHECK_EQ(thread_find()->inflight, 1);
	CHECK_EQ(LOST(allocations), 2);
	/* Left inside of a call that returns. */
	ENTER_AT(0, cuCtxGetCurrent, 0);
	ENTER_AT(10, cuMemFree_v2, 1);
	leave(cuCtxGetCurrent, 0);
	CHECK_EQ(thread_find()->inflight, 0);
	CHECK_EQ(LOST(allocations), 3);
	CHECK_EQ(LOST(frees), 1);
}

TEST(function_that_ends_with_a_jump_to_another_is_not_lost)
{
	struct return_instance___x own = {BASE_SP, 0x666, NULL};
	__u64 out = 0xd000;

	ENTER(cuMemAllocManaged, (__u64)&out, 1);
	main_thread.utask.return_instances = &own;
	ENTER(cuMemAlloc_v2, (__u64)&out, 1);
	leave(cuMemAlloc_v2, 0);
	leave(cuMemAllocManaged, 0);
	CHECK_EQ(count_records(&records, VS_CALL), 1);
	CHECK_EQ(LOST(allocations), 0);
}

TEST(return_of_another_call_does_not_give_its_result)
{
	__u64 out = 0xd000;

	/* The entry of the inner call was not kept, as of the fifth one inside of each other. */
	ENTER_AT(0, cuMemAlloc_v2, (__u64)&out, 4096);
	leave_at(20, cuMemAlloc_v2, 1);
	CHECK_EQ(count_records(&records, VS_CALL), 0);
	CHECK_EQ(own_counters()->unmatched, 1);
	leave_at(0, cuMemAlloc_v2, 0);
	CHECK_EQ(call_record(0)->head.result, 0);
	CHECK_EQ(call_record(0)->outs[0], out);
}

TEST(call_whose_return_was_missed_is_lost)
{
	ENTER_AT(10, cuMemCreate, 0, 4096);
	/* A later call of the same function, in the same and in another caller. */
	ENTER_AT(10, cuMemCreate, 0, 4096);
	leave(cuMemCreate, 2);
	CHECK_EQ(LOST(allocations), 1);
	ENTER_AT(20, cuMemFree_v2, 1);
	ENTER_AT(5, cuMemFree_v2, 1);
	leave(cuMemFree_v2, 0);
	CHECK_EQ(LOST(frees), 1);
	CHECK_EQ(count_records(&records, VS_CALL) + count_records(&records, VS_CALL_DESCRIPTOR), 2);
}

TEST(calls_nested_too_deeply_are_lost)
{
	/* Calls inside queries count, so none of these hides the others. */
	for (int i = 0; i < VS_INFLIGHT; i++)
		CHECK_EQ(ENTER_AT(i * 10, cuCtxGetCurrent, 0), 0);
	CHECK_EQ(ENTER_AT(90, cuMemAlloc_v2, 0, 4096), 1);
	CHECK_EQ(LOST(allocations), 1);
	CHECK_EQ(LOST(allocated_bytes), 4096);
	/* A lost context call makes the context unknown. */
	CHECK(context_known(thread_find()));
	CHECK_EQ(ENTER_AT(90, cuCtxPushCurrent_v2, 7), 1);
	CHECK(!context_known(thread_find()));
	CHECK_EQ(own_counters()->no_state, 2);
}

TEST(calls_without_state_are_lost_by_class)
{
	shim.storage_is_busy = 1;
	CHECK_EQ(ENTER(cuMemAlloc_v2, 0, 100), 1);
	CHECK_EQ(ENTER(cuMemFree_v2, 5), 1);
	/* Without effect: a free of a null pointer, and a request of no bytes. */
	CHECK_EQ(ENTER(cuMemFree_v2, 0), 1);
	CHECK_EQ(ENTER(cuMemAlloc_v2, 0, 0), 1);
	CHECK_EQ(ENTER(cuEventCreate, 1), 1);
	CHECK_EQ(ENTER(cuStreamCreate, 1), 1);
	CHECK_EQ(LOST(allocations), 1);
	CHECK_EQ(LOST(allocated_bytes), 100);
	CHECK_EQ(LOST(frees), 1);
	/* A stream is an object that affects memory: it counts twice. */
	CHECK_EQ(LOST(objects), 2);
	CHECK_EQ(LOST(other), 1);
	CHECK(shared_state()->dropped_at != 0);
}

TEST(records_that_do_not_fit_are_lost_by_class)
{
	__u64 out = 0xd000, pitch[2] = {0xd000, 1024}, array[3] = {10, 20, 0x100000020};

	shim.full_ring = &records;
	DO_CALL(cuMemAlloc_v2, 0, (__u64)&out, 100);
	DO_CALL(cuMemAllocPitch_v2, 0, (__u64)&pitch[0], (__u64)&pitch[1], 1000, 3, 4);
	DO_CALL(cuArrayCreate_v2, 0, (__u64)&out, (__u64)array);
	CHECK_EQ(LOST(allocations), 3);
	CHECK_EQ(LOST(allocated_bytes), 100 + 3 * 1024 + 10 * 20 * 4);
	DO_CALL(cuMemAlloc_v2, 2, (__u64)&out, 100);
	CHECK_EQ(LOST(failures), 1);
	out = 0;
	DO_CALL(cuMemAlloc_v2, 0, (__u64)&out, 0);
	DO_CALL(cuMemFree_v2, 0, 0);
	CHECK_EQ(LOST(allocations), 3);
	CHECK_EQ(LOST(frees), 0);
	/* A context is known to the thread although its record was lost. */
	out = 42;
	DO_CALL(cuCtxCreate_v2, 0, (__u64)&out);
	CHECK_EQ(context_top(thread_find()), 42);
	CHECK_EQ(LOST(other), 1);
}

TEST(return_without_entry_is_counted)
{
	leave(cuMemAlloc_v2, 0);
	CHECK_EQ(own_counters()->unmatched, 1);
	ENTER(cuMemFree_v2, 1);
	leave(cuMemAlloc_v2, 0);
	CHECK_EQ(own_counters()->unmatched, 2);
	leave(cuMemFree_v2, 0);
	CHECK_EQ(own_counters()->calls, 1);
	/* The self-test is not a call. */
	CHECK_EQ(ENTER(VS_SELF_TEST), 0);
	leave(VS_SELF_TEST, 0);
	CHECK_EQ(own_counters()->self_test, 2);
}

TEST(call_in_which_its_thread_ends_is_lost)
{
	ENTER_AT(0, cuCtxGetCurrent, 0);
	ENTER_AT(10, cuMemAlloc_v2, 0, 100);
	ENTER_AT(20, cuMemFree_v2, 1);
	main_thread.signal.live.counter = 0;
	process_exit(NULL);
	/* The query has no effect, and the free is a part of the allocation. */
	CHECK_EQ(LOST(allocations), 1);
	CHECK_EQ(LOST(frees), 0);
	CHECK_EQ(LOST(other), 0);
}

TEST(all_attach_modes_record_the_same_call)
{
	__u64 out = 1;

	ENTER(cuMemAlloc_v2, (__u64)&out, 7);
	thread_find()->inflight = 0;
	shim_now.cookie = cuMemAlloc_v2;
	call_multi_enter((void *)&regs);
	PT_REGS_RC(&regs) = 0;
	PT_REGS_SP(&regs) += CALL_BYTES;
	call_multi_return((void *)&regs);
	PT_REGS_PARM1(&regs) = (__u64)&out;
	call_single_enter((void *)&regs);
	PT_REGS_RC(&regs) = 0;
	PT_REGS_SP(&regs) += CALL_BYTES;
	call_single_return((void *)&regs);
	CHECK_EQ(count_records(&records, VS_CALL), 2);
	CHECK_EQ(call_record(1)->args[1], 7);
}

static __u64 array_of(__u64 width, __u64 height, __u64 depth, __u32 flags, __u8 measure,
		      __u32 levels)
{
	struct array_shape shape = {width, height, depth, 32, 2, flags, 0};

	return array_bytes((__u64)&shape, measure, levels);
}

TEST(size_of_lost_arrays_follows_their_descriptor)
{
	/* 4 bytes per channel, 2 channels. */
	CHECK_EQ(array_of(10, 0, 0, 0, VS_MEASURE_ARRAY3D, 0), 80);
	CHECK_EQ(array_of(10, 3, 2, 0, VS_MEASURE_ARRAY3D, 0), 480);
	CHECK_EQ(array_of(10, 3, 2, 64, VS_MEASURE_ARRAY3D, 0), 0);
	CHECK_EQ(array_of(8, 8, 8, 0, VS_MEASURE_MIPMAPPED, 4), 8 * (512 + 64 + 8 + 1));
	/* Layers do not shrink; levels are limited. */
	CHECK_EQ(array_of(2, 1, 6, 1, VS_MEASURE_MIPMAPPED, 2), 8 * (12 + 6));
	CHECK_EQ(array_of(1, 1, 1, 0, VS_MEASURE_MIPMAPPED, 1000), 8 * VS_LEVELS);
	CHECK_EQ(array_bytes(UNREADABLE, VS_MEASURE_ARRAY3D, 1), VS_UNKNOWN_BYTES);
	CHECK_EQ(array_bytes(UNREADABLE - 16, VS_MEASURE_ARRAY, 1), VS_UNKNOWN_BYTES);
	((__u8 *)element_bytes)[32] = VS_ALL_CHANNELS | 3;
	CHECK_EQ(array_of(10, 0, 0, 0, VS_MEASURE_ARRAY3D, 0), 30);
}

TEST(size_of_lost_pitched_memory_is_rounded_up)
{
	struct inflight_call call = {.args = {0, UNREADABLE, 1000, 3}};
	__u64 pitch = 2048;

	CHECK_EQ(lost_bytes(&call, cuMemAllocPitch_v2, 0), 3 * 1024);
	CHECK_EQ(lost_bytes(&call, cuMemAllocPitch_v2, 1), 3 * 1024);
	call.args[1] = (__u64)&pitch;
	CHECK_EQ(lost_bytes(&call, cuMemAllocPitch_v2, 1), 3 * 2048);
	CHECK_EQ(lost_bytes(NULL, cuMemAlloc_v2, 1), 0);
	CHECK_EQ(lost_bytes(&call, cuMemFree_v2, 1), 0);
}

static void block_call(__u64 kind, __u64 a, __u64 b, __u64 c, __u64 d, __u64 device)
{
	PT_REGS_PARM1(&regs) = a;
	PT_REGS_PARM2(&regs) = b;
	PT_REGS_PARM3(&regs) = c;
	PT_REGS_PARM4(&regs) = d;
	PT_REGS_PARM5(&regs) = device;
	PT_REGS_SP(&regs) = BASE_SP;
	shim_now.cookie = kind;
	block_multi((void *)&regs);
}

TEST(blocks_of_gpus_are_recorded)
{
	struct vs_block *block;

	load_config.blocks = VS_BLOCKS_TOTALS;
	block_call(VS_BLOCK_TORCH, 0xb000, -512, 1024, 4096, CUDA_DEVICE | 3 << 8);
	block = record(&records, VS_BLOCK, 0);
	CHECK_EQ(block->address, 0xb000);
	CHECK_EQ(block->bytes, -512);
	CHECK_EQ(block->allocated == 1024 && block->reserved == 4096, 1);
	CHECK_EQ(block->device, 3);
	CHECK_EQ(block->flags | block->stack | block->python, 0);
	/* The CPU, a device without index, and upper bits of the register. */
	block_call(VS_BLOCK_TORCH, 1, 1, 1, 1, 0);
	block_call(VS_BLOCK_TORCH, 1, 1, 1, 1, CUDA_DEVICE | 0xff00);
	CHECK_EQ(count_records(&records, VS_BLOCK), 1);
	block_call(VS_BLOCK_TORCH_OOM, 99, 1024, 4096, 0xffff000000000000 | CUDA_DEVICE | 2 << 8,
		   7);
	block = record(&records, VS_BLOCK, 1);
	CHECK_EQ(block->address, 0);
	CHECK_EQ(block->bytes, 99);
	CHECK_EQ(block->head.hook, VS_BLOCK_TORCH_OOM);
	CHECK_EQ(block->device, 2);
	CHECK_EQ(count_records(&records, VS_PROCESS), 1);
}

/* 1 - exp(-x) */
static double probability(double x)
{
	double rest = 1 - x / (1 << 20);

	for (int i = 0; i < 20; i++)
		rest *= rest;
	return 1 - rest;
}

/* Allocates blocks, one each microsecond. Returns the estimated bytes of all of them. */
static double sampled_bytes(__u64 blocks, __u64 bytes)
{
	double estimate = 0;

	for (__u64 i = 0; i < blocks; i++) {
		struct vs_block *block;
		double expected = 1.0 / VS_SAMPLE_MIN_SHARE;

		shim_drop();
		shim_now.time += 1000;
		block_call(VS_BLOCK_TORCH, i, bytes, 1, 1, CUDA_DEVICE);
		block = record(&records, VS_BLOCK, 0);
		if (block->flags & VS_SKIPPED) {
			CHECK_EQ(block->stack | block->python, 0);
			continue;
		}
		expected += (double)bytes / (1UL << block->interval);
		estimate += block->interval ? bytes / probability(expected) : bytes;
	}
	return estimate;
}

TEST(samples_of_blocks_are_unbiased)
{
	load_config.blocks = VS_BLOCKS_SAMPLED;
	load_config.stacks = VS_STACKS_FRAME_POINTER;
	for (__u64 bytes = 512; bytes <= 1 << 26; bytes <<= 6) {
		double estimate = sampled_bytes(200000, bytes) / (200000.0 * bytes);

		CHECK_EQ(estimate > 0.93 && estimate < 1.07, 1);
	}
	/* Slow again: all. */
	shim_now.time += 60ULL << VS_SAMPLE_PERIOD;
	CHECK_EQ(sampled_bytes(VS_SAMPLE_STACKS, 512) == VS_SAMPLE_STACKS * 512.0, 1);
	load_config.blocks = VS_BLOCKS_FULL;
	CHECK_EQ(sampled_bytes(10000, 512) == 10000 * 512.0, 1);
}

TEST(blocks_are_lost_before_driver_calls)
{
	shim.available = load_config.block_ring_limit + 1;
	block_call(VS_BLOCK_TORCH, 1, 1, 1, 1, CUDA_DEVICE);
	CHECK_EQ(LOST(tensors), 1);
	DO_CALL(cuInit, 0);
	CHECK_EQ(count_records(&records, VS_CALL), 1);
	shim.available = 0;
	shim.full_ring = &records;
	block_call(VS_BLOCK_TORCH, 1, 1, 1, 1, CUDA_DEVICE);
	shim.full_ring = NULL;
	shim.storage_is_busy = 1;
	block_call(VS_BLOCK_TORCH, 1, 1, 1, 1, CUDA_DEVICE);
	CHECK_EQ(LOST(tensors), 3);
	CHECK_EQ(LOST(other), 0);
}
