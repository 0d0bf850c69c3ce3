/*
 * dlsym and dlvsym: ask our look-up; where it has no answer, leave without a trace and jump to the real function, which
 * then sees the program's return address (RTLD_NEXT depends on it).
 */
    .text

    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call vgpu_lookup_dlsym
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jnz 1f
    movq vgpu_real_dlsym(%rip), %rax
    testq %rax, %rax
    jz 1f
    jmp *%rax
1:  cmpq $-1, %rax
    jne 9f
    xorl %eax, %eax
9:  ret
    .cfi_endproc
    .size dlsym, .-dlsym

    .globl dlvsym
    .type dlvsym, @function
dlvsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    call vgpu_lookup_dlvsym
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jnz 2f
    movq vgpu_real_dlvsym(%rip), %rax
    testq %rax, %rax
    jz 2f
    jmp *%rax
2:  cmpq $-1, %rax
    jne 9f
    xorl %eax, %eax
9:  ret
    .cfi_endproc
    .size dlvsym, .-dlvsym

    .section .note.GNU-stack, "", @progbits
