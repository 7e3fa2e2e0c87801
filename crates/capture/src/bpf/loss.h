/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Sizes of allocations whose records are lost, and calls that need not be counted as lost. */
#ifndef VS_LOSS_H
#define VS_LOSS_H

/* Bytes of an array element by format: of one channel, or with VS_ALL_CHANNELS of all. Set by user
 * space, which uses the same table to decode delivered records. */
const volatile __u8 element_bytes[256] = {};

/* Flags of CUDA_ARRAY3D_DESCRIPTOR: layered or cube map; no memory until it is mapped. */
#define VS_ARRAY_LAYERED 5
#define VS_ARRAY_EMPTY	 192

/* Maximum number of mip levels. */
#define VS_LEVELS 32

/* CUDA_ARRAY3D_DESCRIPTOR. CUDA_ARRAY_DESCRIPTOR has no depth and no flags. */
struct array_shape {
	__u64 width;
	__u64 height;
	__u64 depth;
	__u32 format;
	__u32 channels;
	__u32 flags;
	__u32 unused;
};

static __always_inline __u64 shrunk(__u64 size, __u32 by)
{
	return (size >> by) ?: 1;
}

/* Returns the size of the array that a descriptor in user memory describes; an upper bound if the
 * descriptor cannot be read. */
__noinline __u64 array_bytes(__u64 from, __u8 measure, __u32 levels)
{
	struct array_shape shape = {};
	__u64 bytes, sum = 0;
	__u8 element;

	if (measure == VS_MEASURE_ARRAY) {
		if (bpf_probe_read_user(&shape, 16, (void *)from) ||
		    bpf_probe_read_user(&shape.format, 8, (void *)(from + 16)))
			return VS_UNKNOWN_BYTES;
	} else if (bpf_probe_read_user(&shape, 36, (void *)from)) {
		return VS_UNKNOWN_BYTES;
	}
	if (shape.flags & VS_ARRAY_EMPTY)
		return 0;
	if (measure != VS_MEASURE_MIPMAPPED || !levels)
		levels = 1;
	element = element_bytes[shape.format & 255];
	bytes = element & ~VS_ALL_CHANNELS;
	if (!(element & VS_ALL_CHANNELS))
		bytes *= shape.channels ?: 1;
	for (__u32 by = 0; by < VS_LEVELS; by++) {
		if (by >= levels)
			break;
		sum += bytes * shrunk(shape.width, by) * shrunk(shape.height, by) *
		       shrunk(shape.depth, shape.flags & VS_ARRAY_LAYERED ? 0 : by);
	}
	return sum;
}

/* Returns an upper bound of the bytes that a successful call allocates. The pitch is known only
 * after the call has returned. */
static __noinline __u64 lost_bytes(const struct inflight_call *call, __u64 hook, int returned)
{
	__u64 size, pitch = 0;
	__u8 factor, measure;

	hook &= VS_MAX_HOOKS - 1;
	if (!call || hooks[hook].loss_class != VS_CLASS_ALLOCATE)
		return 0;
	factor = hooks[hook].size_factor;
	measure = hooks[hook].measure;
	if (measure >= VS_MEASURE_ARRAY)
		return array_bytes(argument(call, hooks[hook].descriptor_argument), measure,
				   (__u32)argument(call, factor));
	size = argument(call, hooks[hook].size_argument);
	if (measure == VS_MEASURE_PITCH) {
		/* The driver pads rows to multiples of 512 bytes. */
		if (!returned || read_out(call, hook, 1, &pitch) || !pitch)
			pitch = (size + 511) & ~511ULL;
		size = pitch;
	}
	if (factor != VS_NONE)
		size *= argument(call, factor);
	return size;
}

/* Returns whether a successful call had no effect: it freed a null pointer, or requested no bytes
 * and got no memory. User space ignores such a call, so it does not count as lost. */
static __always_inline bool has_no_effect(const struct inflight_call *call, __u64 hook, __u64 bytes,
					  __u64 out)
{
	__u8 class = hooks[hook].loss_class;

	if (class == VS_CLASS_FREE)
		return !call->args[0];
	return class == VS_CLASS_ALLOCATE && hooks[hook].out_argument[0] != VS_NONE && !bytes &&
	       !out;
}

#endif
