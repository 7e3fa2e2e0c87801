/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* state.h, arch.h, emit.h and process_lifecycle.h: threads, processes, announcements, losses. */

TEST(only_targets_are_traced)
{
	__u32 pid = PID;
	__u8 yes = 1;

	CHECK(is_target(PID));
	load_config.tracer_pid = PID;
	CHECK(!is_target(PID));
	load_config.tracer_pid = 1;
	load_config.filter = VS_FILTER_TARGETS;
	CHECK(!is_target(PID));
	CHECK_EQ(ENTER(cuMemAlloc_v2, 0, 64), 1);
	bpf_map_update_elem(&targets, &pid, &yes, BPF_ANY);
	CHECK(is_target(PID));
}

TEST(stack_mode_is_reduced_but_not_below_off)
{
	load_config.stacks = VS_STACKS_COPY;
	CHECK_EQ(effective_stack_mode(), VS_STACKS_COPY);
	runtime_config.stack_mode_reduction = 1;
	CHECK_EQ(effective_stack_mode(), VS_STACKS_FRAME_POINTER);
	runtime_config.stack_mode_reduction = 7;
	CHECK_EQ(effective_stack_mode(), VS_STACKS_OFF);
}

TEST(thread_starts_from_empty_only_after_attaching)
{
	struct {
		__u64 attached_at, dropped_at;
		bool from_empty;
	} cases[] = {{500, 0, 1}, {0, 0, 0}, {1500, 0, 0}, {500, 1500, 0}};

	for (unsigned i = 0; i < 4; i++) {
		struct thread_state thread = {};

		runtime_config.attached_at = cases[i].attached_at;
		shared_state()->dropped_at = cases[i].dropped_at;
		thread_setup(&thread);
		CHECK_EQ(thread.from_empty, cases[i].from_empty);
		CHECK_EQ(thread.device, -1);
	}
}

TEST(thread_state_has_one_entry_per_thread)
{
	for (int storage = 0; storage < 2; storage++) {
		struct thread_state *first;

		load_config.use_task_storage = storage;
		CHECK(!thread_find());
		first = thread_create();
		first->depth = 7;
		run_as(&second_thread, PID + 1);
		CHECK(!thread_find());
		CHECK_EQ(thread_create()->depth, 0);
		CHECK(thread_delete(PID + 1));
		CHECK(!thread_find());
		run_as(&main_thread, PID);
		CHECK_EQ(thread_find()->depth, 7);
		CHECK(thread_delete(PID));
		CHECK(!thread_delete(PID));
	}
}

TEST(out_values_have_the_width_of_their_row)
{
	__u64 out = 0x1122334455667788, value;
	struct inflight_call call = {.args = {(__u64)&out}};

	CHECK_EQ(read_out(&call, cuMemAlloc_v2, 0, &value), 0);
	CHECK_EQ(value, out);
	CHECK_EQ(read_out(&call, cuMemAlloc, 0, &value), 0);
	CHECK_EQ(value, 0x55667788);
	/* No second out value, no argument of that number. */
	CHECK_EQ(read_out(&call, cuMemAlloc_v2, 1, &value), 0);
	CHECK_EQ(value, 0);
	CHECK_EQ(argument(&call, VS_ARGS), 0);
	call.args[0] = 0;
	CHECK_EQ(read_out(&call, cuMemAlloc_v2, 0, &value), 0);
	call.args[0] = UNREADABLE;
	CHECK_EQ(read_out(&call, cuMemAlloc_v2, 0, &value), VS_OUT_UNREADABLE);
	CHECK_EQ(value, 0);
	/* Half of the value is unreadable. */
	call.args[0] = UNREADABLE - 4;
	CHECK_EQ(read_out(&call, cuMemAlloc_v2, 0, &value), VS_OUT_UNREADABLE);
	CHECK_EQ(read_out(&call, cuMemAlloc, 0, &value), 0);
}

TEST(late_arguments_follow_the_calling_convention)
{
	__u64 args[3] = {};

	PT_REGS_SP(&regs) = BASE_SP;
#if defined(__TARGET_ARCH_arm64)
	PT_REGS_PARM7(&regs) = 7;
	PT_REGS_PARM8(&regs) = 8;
	user_stack[1024] = 9;
	/* The return address is signed in its upper bits. */
	PT_REGS_RET(&regs) = 0xabcd000000001234;
#else
	user_stack[1024] = 0x1234;
	user_stack[1025] = 7;
	user_stack[1026] = 8;
	user_stack[1027] = 9;
#endif
	CHECK_EQ(late_arguments((void *)&regs, args), 0);
	CHECK_EQ(args[0] == 7 && args[1] == 8, 1);
	CHECK_EQ(args[2], 9);
	CHECK_EQ(return_address((void *)&regs), 0x1234);
	PT_REGS_SP(&regs) = UNREADABLE;
	CHECK(late_arguments((void *)&regs, args) != 0);
}

TEST(reader_is_woken_when_it_sleeps_or_the_ring_fills)
{
	runtime_config.reader_waits = 1;
	DO_CALL(cuInit, 0);
	/* The announcement always wakes it. */
	CHECK_EQ(shim.records[0].flags, BPF_RB_FORCE_WAKEUP);
	runtime_config.reader_waits = 1;
	DO_CALL(cuInit, 0);
	CHECK_EQ(last_record()->flags, BPF_RB_FORCE_WAKEUP);
	CHECK_EQ(runtime_config.reader_waits, 0);
	DO_CALL(cuInit, 0);
	CHECK_EQ(last_record()->flags, BPF_RB_NO_WAKEUP);
	shim.available = load_config.wakeup_at + 1;
	DO_CALL(cuInit, 0);
	CHECK_EQ(last_record()->flags, BPF_RB_FORCE_WAKEUP);
}

TEST(losses_are_counted_by_class)
{
	count_lost(PID, VS_CLASS_ALLOCATE, 100, 0);
	count_lost(PID, VS_CLASS_ALLOCATE, 28, 0);
	count_lost(PID, VS_CLASS_FREE, 0, 0);
	count_lost(PID, VS_CLASS_COPY, 0, 0);
	count_lost(PID, VS_CLASS_OBJECT, 0, 0);
	count_lost(PID, VS_CLASS_LAUNCH, 0, 0);
	count_lost(PID, VS_CLASS_OTHER, 0, 0);
	/* A failed call is lost as a failure, whatever its class. */
	count_lost(PID, VS_CLASS_ALLOCATE, 100, 2);
	CHECK_EQ(LOST(allocations), 2);
	CHECK_EQ(LOST(allocated_bytes), 128);
	CHECK_EQ(LOST(frees) + LOST(copies) + LOST(objects) + LOST(launches), 4);
	CHECK_EQ(LOST(other), 1);
	CHECK_EQ(LOST(failures), 1);
	CHECK_EQ(own_counters()->lost, 8);
}

TEST(losses_that_do_not_fit_are_of_an_unknown_process)
{
	add_unknown_losses();
	shim_limit(&lost_records, 1);
	count_lost(PID, VS_CLASS_FREE, 0, 0);
	CHECK(!losses());
	CHECK_EQ(unknown_losses(), 1);
	count_lost(0, VS_CLASS_OTHER, 0, 0);
	CHECK_EQ(unknown_losses(), 2);
	CHECK_EQ(own_counters()->lost, 2);
}

TEST(losses_of_exec_generations_and_reused_pids_are_separate)
{
	count_lost(PID, VS_CLASS_FREE, 0, 0);
	main_thread.task.self_exec_id++;
	CHECK_EQ(LOST(frees), 0);
	count_lost(PID, VS_CLASS_FREE, 0, 0);
	main_thread.task.start_boottime++;
	CHECK_EQ(LOST(frees), 0);
}

TEST(process_is_announced_once_with_the_name_of_its_main_thread)
{
	struct vs_process *process;

	run_as(&second_thread, PID + 1);
	strcpy(second_thread.task.comm, "worker");
	DO_CALL(cuInit, 0);
	run_as(&main_thread, PID);
	DO_CALL(cuInit, 0);
	CHECK_EQ(count_records(&records, VS_PROCESS), 1);
	process = record(&records, VS_PROCESS, 0);
	CHECK_EQ(strcmp((char *)process->name, "main"), 0);
	CHECK_EQ(process->start, 1000);
	CHECK_EQ(process->head.result, 3);
	CHECK_EQ(process->uid, 1001);
	CHECK_EQ(process->reserved, 0);
	CHECK_EQ(count_records(&records, VS_CALL), 2);
	/* Another thread was first. */
	CHECK_EQ(announce_process(1), 0);
	CHECK_EQ(count_records(&records, VS_PROCESS), 1);
	CHECK(!losses());
}

TEST(announcement_that_does_not_fit_is_tried_again)
{
	__u32 pid = PID;

	shim.full_ring = &records;
	DO_CALL(cuInit, 0);
	CHECK(!bpf_map_lookup_elem(&processes, &pid));
	CHECK_EQ(LOST(other), 1);
	shim.full_ring = NULL;
	DO_CALL(cuInit, 0);
	CHECK_EQ(count_records(&records, VS_PROCESS), 1);
	CHECK(bpf_map_lookup_elem(&processes, &pid));
}

TEST(process_is_announced_although_the_map_of_processes_is_full)
{
	shim_limit(&processes, 0);
	/* Only calls that are recorded need it. */
	CHECK_EQ(announce_process(0), 0);
	CHECK_EQ(count_records(&records, VS_PROCESS), 0);
	CHECK(losses() && !LOST(other));
	DO_CALL(cuInit, 0);
	CHECK_EQ(count_records(&records, VS_PROCESS), 1);
	CHECK_EQ(LOST(announced), 1);
	CHECK_EQ(LOST(other), 1);
	/* The thread knows that it was. */
	DO_CALL(cuInit, 0);
	CHECK_EQ(count_records(&records, VS_PROCESS), 1);
	/* So its exit is a record, too. */
	main_thread.signal.live.counter = 0;
	process_exit(NULL);
	CHECK_EQ(count_records(&records, VS_EXIT), 1);
	CHECK_EQ(LOST(processes), 0);
}

TEST(thread_name_is_reported_after_each_change)
{
	struct vs_thread_name *name;

	DO_CALL(cuInit, 0);
	DO_CALL(cuInit, 0);
	CHECK_EQ(count_records(&records, VS_THREAD), 1);
	strcpy(shim_now.comm, "renamed");
	shim.full_ring = &records;
	DO_CALL(cuInit, 0);
	shim.full_ring = NULL;
	DO_CALL(cuInit, 0);
	CHECK_EQ(count_records(&records, VS_THREAD), 2);
	name = record(&records, VS_THREAD, 1);
	CHECK_EQ(strcmp((char *)name->name, "renamed"), 0);
}

TEST(exit_of_a_thread_is_not_that_of_its_process)
{
	__u32 pid = PID;

	DO_CALL(cuInit, 0);
	run_as(&second_thread, PID + 1);
	/* Made no call: nothing to report. */
	process_exit(NULL);
	CHECK_EQ(count_records(&records, VS_THREAD_EXIT), 0);
	DO_CALL(cuInit, 0);
	process_exit(NULL);
	CHECK_EQ(count_records(&records, VS_THREAD_EXIT), 1);
	CHECK_EQ(count_records(&records, VS_EXIT), 0);
	run_as(&main_thread, PID);
	main_thread.signal.live.counter = 0;
	process_exit(NULL);
	CHECK_EQ(count_records(&records, VS_EXIT), 1);
	CHECK(!bpf_map_lookup_elem(&processes, &pid));
	/* Nothing is left of it. */
	process_exit(NULL);
	CHECK_EQ(count_records(&records, VS_EXIT), 1);
}

TEST(exec_starts_a_new_program)
{
	struct bpf_raw_tracepoint_args *ctx;
	__u64 args[4] = {};
	struct vs_head *exec;

	ctx = (void *)args;
	args[1] = PID;
	DO_CALL(cuCtxSetCurrent, 0, 77);
	CHECK_EQ(context_top(thread_find()), 77);
	main_thread.task.self_exec_id = 4;
	process_exec(ctx);
	/* The call above is not a record, so the process was not announced. */
	CHECK_EQ(count_records(&records, VS_EXEC), 0);
	CHECK(!thread_find());
	DO_CALL(cuInit, 0);
	main_thread.task.self_exec_id = 5;
	process_exec(ctx);
	exec = record(&records, VS_EXEC, 0);
	CHECK_EQ(exec->result, 5);
	DO_CALL(cuInit, 0);
	CHECK_EQ(count_records(&records, VS_PROCESS), 2);
}

TEST(program_of_which_every_record_was_lost_is_marked)
{
	__u64 args[4] = {[1] = PID};
	struct vs_lost *lost;

	shim.full_ring = &records;
	DO_CALL(cuInit, 0);
	lost = losses();
	main_thread.task.self_exec_id++;
	process_exec((void *)args);
	CHECK_EQ(lost->processes, 1);
	CHECK_EQ(lost->replaced, 1);
	DO_CALL(cuInit, 0);
	main_thread.signal.live.counter = 0;
	process_exit(NULL);
	CHECK_EQ(LOST(processes), 1);
	CHECK_EQ(LOST(replaced), 0);
	CHECK_EQ(LOST(other), 1);
}

TEST(exit_record_that_does_not_fit_is_lost)
{
	DO_CALL(cuInit, 0);
	shim.full_ring = &records;
	main_thread.signal.live.counter = 0;
	process_exit(NULL);
	CHECK_EQ(LOST(other), 1);
	CHECK_EQ(LOST(processes), 0);
}

TEST(children_of_targets_are_followed)
{
	struct test_task child;
	__u64 args[4] = {(__u64)&main_thread.task, (__u64)&child.task};
	__u32 parent = PID, pid = PID + 9;
	__u8 yes = 1;

	task_init(&child, &child, 3000);
	child.task.tgid = pid;
	add_unknown_losses();
	bpf_map_update_elem(&targets, &parent, &yes, BPF_ANY);
	load_config.filter = VS_FILTER_TARGETS;
	process_fork((void *)args);
	CHECK(!bpf_map_lookup_elem(&targets, &pid));
	load_config.filter = VS_FILTER_FOLLOW;
	process_fork((void *)args);
	CHECK(bpf_map_lookup_elem(&targets, &pid));
	/* A new thread is not a child; a child that does not fit is lost. */
	child.task.tgid = PID;
	process_fork((void *)args);
	CHECK_EQ(unknown_losses(), 0);
	shim_limit(&targets, 2);
	child.task.tgid = PID + 10;
	process_fork((void *)args);
	CHECK_EQ(unknown_losses(), 1);
	/* The pid of a process that exits is not a target. */
	main_thread.signal.live.counter = 0;
	process_exit(NULL);
	CHECK(!bpf_map_lookup_elem(&targets, &parent));
}

static void call_unknown(__u64 function)
{
	shim_now.cookie = function;
	unknown_single((void *)&regs);
}

static __u64 unknown_count(__u16 function)
{
	struct vs_unknown_key key = {
		.pid = PID, .exec_gen = own_exec_gen(), .function = function, .start = own_start()};
	__u64 *calls = bpf_map_lookup_elem(&unknown_calls, &key);

	return calls ? *calls : 0;
}

TEST(calls_of_unknown_functions_are_counted_by_function_and_program)
{
	call_unknown(1);
	call_unknown(1);
	run_as(&second_thread, PID + 1);
	call_unknown(7);
	CHECK_EQ(unknown_count(1), 2);
	CHECK_EQ(unknown_count(7), 1);
	CHECK_EQ(own_counters()->unknown, 3);
	CHECK_EQ(count_records(&records, VS_PROCESS), 1);
	main_thread.task.self_exec_id++;
	run_as(&main_thread, PID);
	CHECK_EQ(unknown_count(1), 0);
	load_config.filter = VS_FILTER_TARGETS;
	call_unknown(1);
	CHECK_EQ(unknown_count(1), 0);
}

TEST(calls_of_unknown_functions_that_cannot_be_counted_are_lost)
{
	shim_limit(&unknown_calls, 1);
	call_unknown(1);
	call_unknown(2);
	CHECK_EQ(unknown_count(1), 1);
	CHECK_EQ(LOST(other), 1);
}
