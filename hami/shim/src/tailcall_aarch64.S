/* As tailcall_x86_64.S, for 64-bit Arm. */
    .text

    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    hint #34 /* bti c */
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    stp x0, x1, [sp, #16]
    bl vgpu_lookup_dlsym
    mov x9, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    .cfi_restore x29
    .cfi_restore x30
    cbnz x9, 1f
    adrp x9, vgpu_real_dlsym
    ldr x9, [x9, #:lo12:vgpu_real_dlsym]
    cbz x9, 1f
    mov x16, x9
    br x16
1:  cmn x9, #1
    csel x0, xzr, x9, eq
    ret
    .cfi_endproc
    .size dlsym, .-dlsym

    .globl dlvsym
    .type dlvsym, %function
dlvsym:
    .cfi_startproc
    hint #34
    stp x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    bl vgpu_lookup_dlvsym
    mov x9, x0
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_adjust_cfa_offset -48
    .cfi_restore x29
    .cfi_restore x30
    cbnz x9, 2f
    adrp x9, vgpu_real_dlvsym
    ldr x9, [x9, #:lo12:vgpu_real_dlvsym]
    cbz x9, 2f
    mov x16, x9
    br x16
2:  cmn x9, #1
    csel x0, xzr, x9, eq
    ret
    .cfi_endproc
    .size dlvsym, .-dlvsym

    .section .note.GNU-stack, "", %progbits
