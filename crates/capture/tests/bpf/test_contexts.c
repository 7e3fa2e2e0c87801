/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* context.h: the context stack of a thread. */

static struct thread_state *new_thread(void)
{
	struct thread_state *thread = thread_create();

	thread_setup(thread);
	return thread;
}

TEST(context_of_a_new_thread_is_known_to_be_none)
{
	struct thread_state *thread = new_thread();

	CHECK(context_known(thread));
	CHECK_EQ(context_top(thread), 0);
	context_push(thread, 5);
	CHECK_EQ(context_top(thread), 5);
	context_pop(thread);
	CHECK(context_known(thread));
	CHECK_EQ(context_top(thread), 0);
}

TEST(context_of_an_old_thread_is_unknown_until_it_is_set)
{
	struct thread_state *thread = new_thread();

	thread->from_empty = 0;
	CHECK(!context_known(thread));
	context_push(thread, 5);
	CHECK(context_known(thread));
	context_pop(thread);
	/* Below the first level that was seen. */
	CHECK(!context_known(thread));
	context_set(thread, 6);
	CHECK_EQ(context_top(thread), 6);
}

TEST(deep_context_stacks_keep_their_topmost_levels)
{
	struct thread_state *thread = new_thread();

	for (__u64 i = 1; i <= VS_CONTEXTS + 10; i++)
		context_push(thread, i);
	CHECK_EQ(thread->depth, VS_CONTEXTS + 10);
	CHECK_EQ(thread->known, VS_CONTEXTS);
	for (__u64 i = VS_CONTEXTS + 10; i > 10; i--) {
		CHECK_EQ(context_top(thread), i);
		context_pop(thread);
	}
	CHECK(!context_known(thread));
	for (int i = 0; i < 10; i++)
		context_pop(thread);
	/* Everything is popped. */
	CHECK(context_known(thread));
	CHECK_EQ(context_top(thread), 0);
	context_pop(thread);
	CHECK_EQ(thread->depth, 0);
}

TEST(setting_a_context_replaces_the_top_and_null_pops)
{
	struct thread_state *thread = new_thread();

	context_set(thread, 1);
	context_push(thread, 2);
	context_set(thread, 3);
	CHECK_EQ(thread->depth, 2);
	CHECK_EQ(context_top(thread), 3);
	context_set(thread, 0);
	CHECK_EQ(context_top(thread), 1);
	context_set(thread, 1);
	CHECK_EQ(thread->depth, 1);
}

TEST(destroyed_context_is_popped_only_from_the_top)
{
	struct thread_state *thread = new_thread();

	context_push(thread, 1);
	context_push(thread, 2);
	context_destroy(thread, 1);
	CHECK_EQ(context_top(thread), 2);
	context_destroy(thread, 2);
	CHECK_EQ(context_top(thread), 1);
	thread->known = thread->depth = thread->from_empty = 0;
	context_destroy(thread, 1);
	CHECK(!context_known(thread));
}

TEST(query_with_another_context_makes_the_levels_below_unknown)
{
	struct thread_state *thread = new_thread();

	context_push(thread, 1);
	context_push(thread, 2);
	context_apply_query(thread, 2);
	CHECK_EQ(thread->depth, 2);
	context_apply_query(thread, 9);
	CHECK_EQ(context_top(thread), 9);
	context_pop(thread);
	CHECK(!context_known(thread));
	context_apply_query(thread, 0);
	CHECK(context_known(thread));
	CHECK_EQ(context_top(thread), 0);
}

TEST(failed_calls_do_not_change_the_context)
{
	DO_CALL(cuCtxSetCurrent, 0, 5);
	DO_CALL(cuCtxPushCurrent_v2, 201, 6);
	CHECK_EQ(context_top(thread_find()), 5);
	DO_CALL(cuCtxPushCurrent_v2, 0, 6);
	DO_CALL(cuCtxPopCurrent_v2, 1);
	CHECK_EQ(context_top(thread_find()), 6);
	CHECK_EQ(shim.records_used, 0);
}

TEST(setting_the_same_context_skips_the_return_side)
{
	CHECK_EQ(ENTER(cuCtxSetCurrent, 5), 0);
	leave(cuCtxSetCurrent, 0);
	CHECK_EQ(ENTER(cuCtxSetCurrent, 5), 1);
	CHECK_EQ(ENTER(cuCtxSetCurrent, 6), 0);
	leave(cuCtxSetCurrent, 1);
	CHECK_EQ(context_top(thread_find()), 5);
	/* Attach modes without session run the return side anyway. */
	CHECK_EQ(ENTER(cuCtxSetCurrent, 5), 1);
	leave(cuCtxSetCurrent, 0);
	CHECK_EQ(own_counters()->unmatched, 0);
}

TEST(created_context_is_pushed_and_an_unreadable_one_unknown)
{
	__u64 out = 42;

	DO_CALL(cuCtxCreate_v2, 0, (__u64)&out, 0, 0);
	CHECK_EQ(context_top(thread_find()), 42);
	CHECK_EQ(call_record(0)->outs[0], 42);
	DO_CALL(cuCtxCreate_v2, 0, UNREADABLE, 0, 0);
	CHECK(!context_known(thread_find()));
	CHECK(call_record(1)->flags & VS_OUT_UNREADABLE);
}

TEST(device_of_a_context_is_reported_once_per_program)
{
	struct vs_context_device *device;
	__u32 ordinal = 1;

	main_thread.task.start_boottime = 400; /* older than the probes */
	DO_CALL(cuCtxGetDevice_v2, 0, (__u64)&ordinal, 8);
	DO_CALL(cuCtxGetDevice_v2, 0, (__u64)&ordinal, 8);
	CHECK_EQ(count_records(&records, VS_CONTEXT_DEVICE), 1);
	device = record(&records, VS_CONTEXT_DEVICE, 0);
	CHECK_EQ(device->context, 8);
	CHECK_EQ(device->device, 1);
	CHECK_EQ(device->reserved, 0);
	main_thread.task.self_exec_id++;
	shim.full_ring = &records;
	DO_CALL(cuCtxGetDevice_v2, 0, (__u64)&ordinal, 8);
	shim.full_ring = NULL;
	DO_CALL(cuCtxGetDevice_v2, 0, (__u64)&ordinal, 8);
	CHECK_EQ(count_records(&records, VS_CONTEXT_DEVICE), 2);
	/* Of an unknown context: the device of the thread. */
	DO_CALL(cuCtxGetDevice, 0, (__u64)&ordinal);
	CHECK_EQ(thread_find()->device, 1);
	CHECK_EQ(count_records(&records, VS_CONTEXT_DEVICE), 2);
	DO_CALL(cuCtxGetDevice, 0, UNREADABLE);
	CHECK_EQ(thread_find()->device, 1);
}
