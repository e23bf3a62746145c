"""Loops, collectives and kernels in the text of compiled programs; all numbers are by hand."""

from collections import Counter

from support.program_text import Loop, Moved, collectives, kernels

# As a TPU's compiler writes it: a loop over layers 1 to 3, in which the compiler's own loop sends
# shards of a weight on, at 0 and 2; and a loop over as many positions as an argument says.
TPU = """\
HloModule jit_f, is_scheduled=true

FileNames
1 "ark_jax/models/decoder.py"
2 "ark_jax/models/token_probabilities.py"

FunctionNames
1 "Decoder.layers"
2 "suffix_log_probs"
3 "pick.<locals>.<lambda>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=296 end_line=296 column=19 end_column=19}
2 {file_name_id=2 function_name_id=2 line=9 end_line=9 column=19 end_column=19}
3 {file_name_id=2 function_name_id=3 line=4 end_line=4 column=19 end_column=19}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=3 parent_frame_id=3}

%window.body (p: (bf16[32,8], s32[])) -> (bf16[32,8], s32[]) {
  %p = (bf16[32,8]{1,0:T(8,128)(2,1)}, s32[]{:T(128)}) parameter(0)
  %collective-permute-start.1 = (bf16[32,8]{1,0:T(8,128)(2,1)S(1)}, bf16[32,8]{1,0:T(8,128)}, \
u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), channel_id=7, \
source_target_pairs={{0,1},{1,0}}
  %collective-permute-done.1 = bf16[32,8]{1,0} collective-permute-done(\
%collective-permute-start.1)
  %i.1 = s32[]{:T(128)} get-tuple-element(%p), index=1
  %constant.3 = s32[]{:T(128)} constant(2)
  %next.1 = s32[]{:T(128)} add(%i.1, %constant.3)
  %copy.1 = s32[]{:T(128)} copy(%next.1)
  ROOT %tuple.1 = (bf16[32,8], s32[]) tuple(%collective-permute-done.1, /*index=1*/%copy.1)
}

%window.condition (p: (bf16[32,8], s32[])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(4)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=1
  ROOT %compare.1 = pred[]{:T(512)} compare(%i, %constant.1), direction=LT
}

%gather.a (p: bf16[8,6]) -> bf16[64,6] {
  ROOT %all-gather.1 = bf16[64,6]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=5, \
replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, dimensions={0}
}

%gather.b (p: bf16[8,6]) -> bf16[64,6] {
  ROOT %all-gather.2 = bf16[64,6]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=5, \
replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, dimensions={0}
}

%all-reduce-scatter.1 (p: f32[64,6]) -> f32[8,6] {
  %all-reduce.1 = f32[64,6]{1,0:T(8,128)} all-reduce(%p), channel_id=6, \
replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %slice.1 = f32[8,6]{1,0:T(8,128)} dynamic-slice(%all-reduce.1, %i, %zero)
}

%layers.body (p: (s32[], bf16[64,6])) -> (s32[], bf16[64,6]) {
  %fusion.1 = bf16[64,6]{1,0} fusion(%p), kind=kCustom, calls=%gather.a
  %fusion.2 = bf16[64,6]{1,0} fusion(%p), kind=kCustom, calls=%gather.b
  %fusion.3 = f32[8,6]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %while.1 = (bf16[32,8], s32[]) while(%t), condition=%window.condition, body=%window.body, \
metadata={op_name="jit(f)/while/body/dot_general" stack_frame_id=3}
}

%layers.condition (p: (s32[], bf16[64,6])) -> pred[] {
  %constant.2 = s32[]{:T(128)} constant(4), metadata={op_name="jit(f)/while/cond/lt"}
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.2), direction=LT
}

%positions.body (p: (s32[], s32[])) -> (s32[], s32[]) {
  %all-gather.3 = bf16[100,6]{1,0:T(8,128)(2,1)} all-gather(%h), channel_id=9, \
replica_groups=[1,8]<=[8], dimensions={1}
  %alone.1 = f32[5]{0} all-reduce(%y), channel_id=10, replica_groups={{0},{1}}, to_apply=%add
}

%positions.condition (p: (s32[], s32[])) -> pred[] {
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] get-tuple-element(%p), index=1
  ROOT %lt.2 = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (a: bf16[8,6]) -> bf16[64,6] {
  %constant.4 = s32[]{:T(128)} constant(1)
  %tuple.2 = (s32[], bf16[64,6]) tuple(%constant.4, %a)
  %while.2 = (s32[], bf16[64,6]) while(%tuple.2), condition=%layers.condition, body=%layers.body, \
metadata={op_name="jit(f)/while" stack_frame_id=1}
  %while.3 = (s32[], s32[]) while(%t), condition=%positions.condition, body=%positions.body, \
metadata={op_name="jit(f)/while" stack_frame_id=2}
  %splash_mha_fwd.3 = bf16[4,8]{1,0} custom-call(%a), custom_call_target="tpu_custom_call"
  %splash_mha_fwd.12 = bf16[4,8]{1,0} custom-call(%a), custom_call_target="tpu_custom_call"
  %b.1 = u8[4]{0} custom-call(), custom_call_target="AllocateBuffer"
  ROOT %all-to-all.1 = (bf16[4,6]{1,0}, bf16[4,6]{1,0}) all-to-all(%a, %a), channel_id=11, \
replica_groups={{0,1}}
}
"""
LAYERS, POSITIONS = Loop("Decoder.layers", 3), Loop("suffix_log_probs", None)


def test_what_travels_in_a_tpu_program():
    assert collectives(TPU) == [
        Moved("collective-permute", (32, 8), 512, 6, 2, (LAYERS, Loop("", 2))),
        Moved("all-gather", (64, 6), 768, 3, 8, (LAYERS,)),  # once, though two fusions name it
        Moved("reduce-scatter", (64, 6), 192, 3, 8, (LAYERS,)),
        Moved("all-gather", (100, 6), 1200, 1, 8, (POSITIONS,)),
        Moved("all-to-all", (4, 6), 96, 1, 2),
    ]


def test_rounds_that_an_argument_gives():
    moves = collectives(TPU, rounds=20)
    assert [(x.times, x.loops) for x in moves if x.shape == (100, 6)] == [
        (20, (POSITIONS._replace(rounds=20),))
    ]


def test_bytes_that_a_device_receives():
    assert [x.received for x in collectives(TPU)] == [
        6 * 512,
        3 * 768 * 7 / 8,
        3 * 192 * 7,
        1200 * 7 / 8,
        96 / 2,
    ]
    assert Moved("all-reduce", (4,), 16, 5, 4).received == 5 * 16 * 3 / 4 * 2


def test_kernels_by_name():
    assert kernels(TPU) == Counter({"splash_mha_fwd": 2, "AllocateBuffer": 1})


# As a GPU's compiler writes it: starts and ends apart, some in computations that an end names too.
GPU = """\
HloModule jit_f, is_scheduled=true

%async_computation (p: f32[64,6]) -> f32[8,6] {
  ROOT %reduce-scatter.1 = f32[8,6]{1,0} reduce-scatter(%p), channel_id=1, \
replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
}

%body (p: (s32[], f32[8,6])) -> (s32[], f32[8,6]) {
  %start.1 = ((f32[64,6]), f32[8,6]{1,0}) async-start(%p), calls=%async_computation
  %done.1 = f32[8,6]{1,0} async-done(%start.1), calls=%async_computation
  %all-gather-start.1 = ((f32[8,6]{1,0}, f32[2]{0}), (f32[64,6]{1,0}, f32[16]{0})) \
all-gather-start(%p, %q), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}
  %all-gather-done.1 = (f32[64,6]{1,0}, f32[16]{0}) all-gather-done(%all-gather-start.1)
  %all-reduce-start.1 = f32[7]{0} all-reduce-start(%x), channel_id=3, \
replica_groups=[2,4]<=[8], to_apply=%add
  %attend = bf16[4]{0} custom-call(%p), custom_call_target="__cudnn$fmhaSoftmax"
}

ENTRY %main (a: f32[8,6]) -> f32[8,6] {
  ROOT %while.1 = (s32[], f32[8,6]) while(%t), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"28"}}
}
"""


def test_what_travels_in_a_gpu_program():
    loops = (Loop("", 28),)
    assert collectives(GPU) == [
        Moved("reduce-scatter", (8, 6), 192, 28, 8, loops),
        Moved("all-gather", (64, 6), 1536, 28, 8, loops),
        Moved("all-gather", (16,), 64, 28, 8, loops),
        Moved("all-reduce", (7,), 28, 28, 4, loops),
    ]
    assert kernels(GPU) == Counter({"__cudnn$fmhaSoftmax": 1})


def test_a_loop_that_may_end_early_counts_with_its_limit():
    text = TPU.replace(
        "  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.2), direction=LT",
        "  %lt.1 = pred[]{:T(512)} compare(%i, %constant.2), direction=LT\n"
        "  ROOT %and.1 = pred[]{:T(512)} and(%lt.1, %going)",
    )
    assert text != TPU and collectives(text) == collectives(TPU)
