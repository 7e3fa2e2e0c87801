/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* graph.h: capturing streams, and processes whose graphs have memory. */

#define STREAM 0x5000

static struct vs_graph_state *state(void)
{
	__u32 pid = PID;

	return bpf_map_lookup_elem(&graph_states, &pid);
}

TEST(capture_ends_with_the_graph_or_a_capture_error)
{
	/* 903: no capture began on the stream. */
	struct {
		int result;
		bool has_ended;
	} cases[] = {{0, 1}, {1, 0}, {400, 0}, {900, 1}, {903, 0}, {907, 1}, {908, 1}, {909, 0}};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		reset();
		DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
		CHECK_EQ(captured_as(PID, STREAM), CAPTURED);
		DO_CALL(cuStreamEndCapture, cases[i].result, STREAM);
		CHECK_EQ(captured_as(PID, STREAM), cases[i].has_ended ? NOT_CAPTURED : CAPTURED);
		CHECK_EQ(!!(call_record(1)->flags & VS_CAPTURE_ENDED), cases[i].has_ended);
		CHECK_EQ(shared_state()->captures, !cases[i].has_ended);
	}
}

TEST(failed_begin_is_not_a_capture)
{
	DO_CALL(cuStreamBeginCapture_v2, 1, STREAM);
	CHECK_EQ(captured_as(PID, STREAM), NOT_CAPTURED);
	CHECK(!state());
}

TEST(default_streams_are_per_thread)
{
	DO_CALL(cuStreamBeginCapture_v2, 0, 2);
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	run_as(&second_thread, PID + 1);
	CHECK_EQ(captured_as(PID, 2), NOT_CAPTURED);
	CHECK_EQ(captured_as(PID, STREAM), CAPTURED);
	CHECK_EQ(captured_as(PID, STREAM + 1), NOT_CAPTURED);
	run_as(&main_thread, PID);
	CHECK_EQ(captured_as(PID, 2), CAPTURED);
	/* Another stream may have joined a capture of this thread. */
	CHECK_EQ(captured_as(PID, STREAM + 1), MAYBE_CAPTURED);
}

TEST(capture_may_end_in_another_thread)
{
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM + 8);
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM + 8); /* again */
	CHECK_EQ(state()->captures, 2);
	run_as(&second_thread, PID + 1);
	DO_CALL(cuStreamEndCapture, 0, STREAM);
	run_as(&main_thread, PID);
	CHECK_EQ(captured_as(PID, STREAM), MAYBE_CAPTURED);
	DO_CALL(cuStreamDestroy_v2, 0, STREAM + 8);
	CHECK_EQ(captured_as(PID, STREAM), NOT_CAPTURED);
	CHECK_EQ(state()->captures, 0);
	DO_CALL(cuStreamEndCapture, 0, STREAM);
	CHECK_EQ(shared_state()->captures, 0);
}

TEST(thread_whose_captures_have_ended_captures_nothing)
{
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	run_as(&second_thread, PID + 1);
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM + 8);
	run_as(&main_thread, PID);
	CHECK_EQ(captured_as(PID, STREAM + 16), MAYBE_CAPTURED);
	DO_CALL(cuStreamEndCapture, 0, STREAM);
	CHECK_EQ(captured_as(PID, STREAM + 16), NOT_CAPTURED);
	CHECK_EQ(captured_as(PID, STREAM + 8), CAPTURED);
}

TEST(end_of_a_thread_ends_captures_of_its_default_streams)
{
	run_as(&second_thread, PID + 1);
	DO_CALL(cuStreamBeginCapture_v2, 0, 1);
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	process_exit(NULL);
	CHECK_EQ(state()->captures, 1);
	run_as(&main_thread, PID);
	CHECK_EQ(captured_as(PID, STREAM), CAPTURED);
}

TEST(end_of_a_context_drops_the_captures_of_the_process)
{
	__u64 id;

	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	id = state()->id;
	DO_CALL(cuCtxDestroy_v2, 1, 7);
	CHECK_EQ(state()->captures, 1);
	DO_CALL(cuCtxDestroy_v2, 0, 7);
	CHECK_EQ(captured_as(PID, STREAM), NOT_CAPTURED);
	CHECK(state()->id != id);
	CHECK_EQ(shared_state()->captures, 0);
	/* Launches that other streams capture count as launched. */
	CHECK_EQ(LOST(launches), 1);
	CHECK_EQ(own_counters()->graphs, 1);
	/* The handle can be captured again. */
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	CHECK_EQ(captured_as(PID, STREAM), CAPTURED);
}

TEST(end_of_a_process_drops_its_captures)
{
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	main_thread.signal.live.counter = 0;
	process_exit(NULL);
	CHECK(!state());
	CHECK_EQ(shared_state()->captures, 0);
	CHECK_EQ(own_counters()->graphs, 1);
}

TEST(full_maps_of_captures_are_a_loss)
{
	shim_limit(&capturing_streams, 1);
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	CHECK_EQ(LOST(launches), 1);
	CHECK_EQ(state()->memory, 1);
	reset();
	shim_limit(&graph_states, 0);
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	CHECK(!state());
	CHECK_EQ(LOST(other), 1);
}

TEST(launches_of_graphs_are_recorded_only_if_they_have_memory)
{
	__u64 parameters[17] = {};

	DO_CALL(cuGraphLaunch, 0, 0xe);
	CHECK_EQ(count_records(&records, VS_CALL), 0);
	/* A failed one always. */
	DO_CALL(cuGraphLaunch, 1, 0xe);
	CHECK_EQ(count_records(&records, VS_CALL), 1);
	DO_CALL(cuGraphAddMemAllocNode, 1, 0, 0, 0, 0, (__u64)parameters);
	CHECK(!needs_graph_record(PID));
	DO_CALL(cuGraphAddMemAllocNode, 0, 0, 0, 0, 0, (__u64)parameters);
	DO_CALL(cuGraphLaunch, 0, 0xe);
	CHECK_EQ(count_records(&records, VS_CALL), 2);
	/* Without activity the return side is skipped. */
	reset();
	load_config.count_activity = 0;
	CHECK_EQ(ENTER(cuGraphLaunch, 0xe), 1);
}

TEST(stream_ordered_calls_during_a_capture_make_nodes)
{
	DO_CALL(cuMemFreeAsync, 0, 0xd000, STREAM);
	CHECK(!state());
	DO_CALL(cuStreamBeginCapture_v2, 0, STREAM);
	CHECK_EQ(state()->memory, 0);
	DO_CALL(cuMemFreeAsync, 0, 0xd000, STREAM);
	CHECK_EQ(state()->memory, 1);
}
