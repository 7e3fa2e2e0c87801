/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Registers of a call in the two calling conventions. */
#ifndef SHIM_BPF_TRACING_H
#define SHIM_BPF_TRACING_H

#if defined(__TARGET_ARCH_arm64)

#define REGISTERS(ctx)	   ((struct user_pt_regs *)(ctx))
#define PT_REGS_PARM1(ctx) (REGISTERS(ctx)->regs[0])
#define PT_REGS_PARM2(ctx) (REGISTERS(ctx)->regs[1])
#define PT_REGS_PARM3(ctx) (REGISTERS(ctx)->regs[2])
#define PT_REGS_PARM4(ctx) (REGISTERS(ctx)->regs[3])
#define PT_REGS_PARM5(ctx) (REGISTERS(ctx)->regs[4])
#define PT_REGS_PARM6(ctx) (REGISTERS(ctx)->regs[5])
#define PT_REGS_PARM7(ctx) (REGISTERS(ctx)->regs[6])
#define PT_REGS_PARM8(ctx) (REGISTERS(ctx)->regs[7])
#define PT_REGS_RC(ctx)	   (REGISTERS(ctx)->regs[0])
#define PT_REGS_FP(ctx)	   (REGISTERS(ctx)->regs[29])
#define PT_REGS_RET(ctx)   (REGISTERS(ctx)->regs[30])
#define PT_REGS_SP(ctx)	   (REGISTERS(ctx)->sp)
#define PT_REGS_IP(ctx)	   (REGISTERS(ctx)->pc)

#else

/* Not that of the host, so that the test runs on any processor. */
struct shim_registers {
	unsigned long rdi, rsi, rdx, rcx, r8, r9, rax, rbp, rsp, rip;
};

#define REGISTERS(ctx)	   ((struct shim_registers *)(ctx))
#define PT_REGS_PARM1(ctx) (REGISTERS(ctx)->rdi)
#define PT_REGS_PARM2(ctx) (REGISTERS(ctx)->rsi)
#define PT_REGS_PARM3(ctx) (REGISTERS(ctx)->rdx)
#define PT_REGS_PARM4(ctx) (REGISTERS(ctx)->rcx)
#define PT_REGS_PARM5(ctx) (REGISTERS(ctx)->r8)
#define PT_REGS_PARM6(ctx) (REGISTERS(ctx)->r9)
#define PT_REGS_RC(ctx)	   (REGISTERS(ctx)->rax)
#define PT_REGS_FP(ctx)	   (REGISTERS(ctx)->rbp)
#define PT_REGS_SP(ctx)	   (REGISTERS(ctx)->rsp)
#define PT_REGS_IP(ctx)	   (REGISTERS(ctx)->rip)

#endif

#endif
