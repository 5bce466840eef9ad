"""Classes of spans: the reference rules, the table of rules, users' patterns, hostile names, searches in names."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.timeline import classifier as module
from densing.efficiency.timeline.classifier import Classifier, Match, any_case, is_plain, rules, search_of
from densing.efficiency.timeline.timeline import Kind

CLASSIFY = Classifier()

# The classes by which the reference numbers were made (README of the golden traces), written down independently.
_COMM = ("nccl", "rccl", "msccl", "nvshmem", "cross_device_reduce", "deepep", "deep_ep", "one_shot_all_reduce",
         "two_shot_all_reduce", "multimem_all_reduce")  # fmt: skip
_MEMORY = ("memcpy", "memset", "hipmem", "memory_copy", "dma", "__amd_rocclr_copybuffer", "__amd_rocclr_fillbuffer")
# Communication that the reference sets do not contain; known from the sources that the table names.
_BEYOND = ("hybrid_ep::", "multimem_one_shot_reduce_kernel", "multimem_all_gather", "multimem_reduce_scatter",
           "oneshotallreducekernel", "twoshotallreducekernel", "oneshotallreducefusionkernel",
           "allreduce_fusion_kernel", "allreduce_prototype_twoshot", "hcom_", "moea2a", "epdispatch", "epcombine",
           "userbuffers", "reduce_scatter_cross_device", "mccl")  # fmt: skip


def reference_class(category: str, name: str) -> str:
    """Return the class of a device span by the reference rules."""
    text = name.lower()
    if category in ("gpu_memcpy", "gpu_memset"):
        return "memory"
    if any(part in text for part in _COMM) or text.startswith(("hccl", "oneccl")):
        return "communication"
    return "memory" if text.startswith(_MEMORY) else "compute"


CLASS = {Kind.COMM: "communication", Kind.MEMCPY: "memory", Kind.MEMSET: "memory", Kind.COMPUTE: "compute"}
fragments = st.sampled_from(
    [*_COMM, *_MEMORY, "hccl", "oneccl", "::", "_", " ", "void ", "(", "AllReduce", "Kernel", "gemm", "NCCL", "Dma"]
)
names = st.lists(fragments | st.text(max_size=5), max_size=6).map("".join)
categories = st.sampled_from(["kernel", "mtia_ccp_events", "gpu_memcpy", "gpu_memset"])


@given(categories, names)
def test_agrees_with_the_reference_classes(category: str, name: str) -> None:
    if any(part in name.lower() for part in _BEYOND):
        return
    assert CLASS[CLASSIFY.kind(category, name)] == reference_class(category, name)


@given(categories | st.text(max_size=8), names | st.text(), st.booleans())
def test_explanation_agrees_with_the_decision(category: str, name: str, collective: bool) -> None:
    match = CLASSIFY.match(category, name, collective)
    assert match.kind == CLASSIFY.kind(category, name, collective)
    assert match.source or not match.known
    assert Match.from_dict(match.to_dict()) == match


# Names as the libraries give them: each from the source its rule names.
@pytest.mark.parametrize(
    ("name", "rule", "op"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "nccl", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "nccl", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL", "nccl", "all_gather"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "nccl", "reduce"),
        ("ncclDevKernel_Broadcast_RING_LL", "nccl", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "nccl", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "nccl", ""),
        ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "nccl", ""),
        ("mscclKernel_Sum_half_Simple(ncclDevComm*, mscclAlgo*)", "nccl", ""),
        ("void mscclpp::allreduce7<float>(float*)", "msccl", "all_reduce"),
        ("nvshmem_alltoall_kernel", "nvshmem", "all_to_all"),
        ("void deep_ep::internode_ll::combine<true, 7168>(void*)", "deepep", "all_to_all"),
        ("void hybrid_ep::dispatch_kernel<uint8_t, 4>()", "hybridep", "all_to_all"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>()", "cross-device-reduce", "all_reduce"),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>", "symmetric-memory-multimem", "all_reduce"),
        ("two_shot_all_reduce_kernel_inplace", "symmetric-memory-two-shot", "all_reduce"),
        ("void multimem_one_shot_all_reduce_kernel", "symmetric-memory-one-shot", "all_reduce"),
        ("void multimem_one_shot_reduce_kernel<float, 16>", "symmetric-memory-reduce", "reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>",
         "trtllm-allreduce-fusion", "all_reduce"),
        ("quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half> >", "quickreduce", "all_reduce"),
        ("_multimem_all_gather_v_kernel", "symmetric-memory-gather", "all_gather"),
        ("_multimem_reduce_scatter_kernel", "symmetric-memory-scatter", "reduce_scatter"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16, true>",
         "mnnvl-one-shot", "all_reduce"),
        ("void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<8>()", "moe-all-to-all", "all_to_all"),
        ("void mori::moe::EpCombineInterNodeV1Kernel<__hip_bfloat16>()", "mori", "all_to_all"),
        ("_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEvPNS_8RankDataE",
         "aiter-reduce-scatter", "reduce_scatter"),
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "userbuffers", ""),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_ag<2>(int, int)", "userbuffers", ""),
        ("mcclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(mcclWorkElem)", "mccl", "send_recv"),
        ("hccl::all_reduce", "hccl", "all_reduce"),
        ("hcom_reduceScatter__012_1", "hcom", "reduce_scatter"),
        ("oneccl_allgatherv_small", "oneccl", "all_gather"),
    ],
)  # fmt: skip
def test_communication_libraries(name: str, rule: str, op: str) -> None:
    match = CLASSIFY.explain(name)
    assert (match.kind, match.rule, match.op) == (Kind.COMM, rule, op)
    assert CLASSIFY.op(name) == op


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("nccl:all_reduce", "all_reduce"), ("nccl:_all_gather_base", "all_gather"), ("allgather", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"), ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"), ("alltoall_base", "all_to_all"), ("nccl:all_to_all", "all_to_all"),
        ("nccl:send 0->1", "send"), ("nccl:recv 0<-1", "recv"), ("c10d::recv_any_source_", "recv"),
        ("gloo:barrier", "barrier"), ("nccl:all_reduce_barrier", "barrier"), ("_broadcast_oop", "broadcast"),
        ("_reduce_oop", "reduce"), ("gloo:gather", "gather"), ("gloo:scatter", "scatter"),
        ("c10d::allreduce_", "all_reduce"),
        ("nccl:coalesced", ""), ("", ""), ("Memcpy PtoP (Device -> Device)", "p2p_copy"), ("Memcpy HtoD", ""),
    ],
)  # fmt: skip
def test_operations(text: str, op: str) -> None:
    assert CLASSIFY.op(text) == op


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", Kind.MEMCPY),
        ("Memcpy", "Memcpy HtoD (Pageable -> Device)", Kind.MEMCPY),
        ("Memset", "Memset (Device)", Kind.MEMSET),
        ("gpu_memset", "ncclsomething", Kind.MEMSET),
        ("Kernel", "ncclKernel_AllGather", Kind.COMM),
        ("kernel", "__amd_rocclr_fillBufferAligned", Kind.MEMSET),
        ("kernel", "__amd_rocclr_copyBuffer.kd", Kind.MEMCPY),
        ("mtia_ccp_events", "DMA_IN", Kind.MEMCPY),
        ("mtia_ccp_events", "MEMORY_COPY_D2D", Kind.MEMCPY),
        ("mtia_ccp_events", "fba_matmul", Kind.COMPUTE),
        ("cuda_sync", "Stream Synchronize", Kind.SYNC),
        ("xpu_sync", "Event Wait", Kind.SYNC),
        ("gpu_user_annotation", "ProfilerStep#3", Kind.UNKNOWN),
        ("", "gemm", Kind.UNKNOWN),
        ("brand_new", "gemm", Kind.UNKNOWN),
    ],
)
def test_category_comes_first(category: str, name: str, kind: Kind) -> None:
    assert CLASSIFY.kind(category, name) == kind


def test_arguments_make_a_collective_of_an_unknown_kernel_only() -> None:
    assert CLASSIFY.explain("my_ring").rule == "kernel-default"
    assert not CLASSIFY.explain("my_ring").known
    assert CLASSIFY.explain("my_ring", collective=True).rule == "collective-arguments"
    assert CLASSIFY.kind("gpu_memcpy", "Memcpy DtoD", collective=True) == Kind.MEMCPY


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int> >",
        "ampere_sgemm_32x128_tn",
        "nvjet_sm100_tst_32x64_64x16_4x1_v_bz_TNN",
        "Cijk_Ailk_Bljk_BBS_BH_MT32x32x64",
        "triton_poi_fused_add_0",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64> >",
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight",
        "SubTensorOpWithScalar1d",
    ],
)
def test_known_compute(name: str) -> None:
    match = CLASSIFY.explain(name)
    assert match.kind == Kind.COMPUTE and match.known and match.source


@pytest.mark.parametrize(
    "name",
    [
        "void aiter::allgather_vec<__hip_bfloat16>",
        "void sglang::allreduce_LL_1node<half>",
        "cutlass_gemm_allreduce",
        "flashinfer::moeAllToAllKernel",
        "my_ring_send_recv_gemm",
    ],
)
def test_a_collective_of_no_known_library_is_compute_that_is_listed(name: str) -> None:
    match = CLASSIFY.explain(name)
    assert (match.kind, match.rule) == (Kind.COMPUTE, "collective-word")
    assert not match.known and not CLASSIFY.knows(name)
    assert CLASSIFY.knows("triton_poi_fused_add_all_reduce_4"), "named after the operators it stands between"
    assert CLASSIFY.kind("kernel", name, collective=True) == Kind.COMM


@given(
    names | st.sampled_from(["allreduce", "x_all_gather<y>", "gemm_alltoall", "triton_red_all_reduce", "frobnicate"])
)
def test_knowing_agrees_with_the_match(name: str) -> None:
    for classifier in (CLASSIFY, Classifier(("frob",))):
        assert classifier.knows(name) == classifier.match("kernel", name).known


def test_users_patterns_win() -> None:
    mine = Classifier(["^my_ring", r"\bPtoP\b"])
    match = mine.explain("MY_RING_allreduce")
    assert (match.kind, match.rule, match.pattern, match.op) == (Kind.COMM, "user-1", "^my_ring", "all_reduce")
    assert mine.explain("Memcpy PtoP", "gpu_memcpy").op == "p2p_copy"
    assert mine.kind("gpu_memcpy", "Memcpy PtoP") == Kind.COMM
    assert mine.host_kind("cpu_op", "my_ring", on_comm_thread=False) == Kind.COMM
    assert mine.kind("kernel", "gemm") == Kind.COMPUTE


@pytest.mark.parametrize("pattern", ["(", "*", "", "a*", "x{99999999999}", "(?P<a>x)(?P<a>y)"])
def test_bad_patterns_are_errors(pattern: str) -> None:
    with pytest.raises(InputError, match="--comm-pattern"):
        Classifier([pattern])


@pytest.mark.parametrize(
    ("category", "name", "on_comm_thread", "kind"),
    [
        ("user_annotation", "gloo:all_reduce", True, Kind.COMM),
        ("user_annotation", "gloo:send", False, Kind.COMM),
        ("user_annotation", "ProfilerStep#1", False, None),
        ("user_annotation", "enumerate(DataLoader)#_Single.__next__", False, None),
        ("cpu_op", "aten::mm", False, Kind.COMPUTE),
        ("cpu_op", "aten::copy_", True, None),
        ("cpu_op", "c10d::allreduce_", False, Kind.CALL),
        ("cpu_op", "_c10d_functional::all_gather_into_tensor", False, Kind.CALL),
        ("cpu_op", "c10d_functional::wait_tensor", False, Kind.CALL),
        ("cpu_op", "record_param_comms", False, Kind.CALL),
        ("cpu_op", "c10d_other::x", False, Kind.COMPUTE),
        ("python_function", "train.py(3): main", False, None),
        ("cuda_runtime", "cudaLaunchKernel", False, None),
    ],
)
def test_host_events(category: str, name: str, on_comm_thread: bool, kind: Kind | None) -> None:
    assert CLASSIFY.host_kind(category, name, on_comm_thread) == kind


@pytest.mark.parametrize("part", ["x", "nccl\n", "<b>&quot;", "a_", "reduce", "\x00", "é", "(((", "mem", "one_shot_"])
def test_megabyte_names_are_read_at_all(part: str) -> None:
    # Milliseconds, where every pattern is linear; quadratic ones would need hours and meet the limit of a test.
    name = part * (10**6 // len(part))
    assert CLASSIFY.kind("kernel", name) in Kind
    CLASSIFY.match("kernel", name)
    CLASSIFY.op(name)


def test_table_is_whole() -> None:
    path = Path(module.__file__).with_name("rules.csv")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert len({row["rule"] for row in rows}) == len(rows)
    for row in rows:
        assert None not in row and None not in row.values(), row["rule"]
        assert row["source"] and row["pattern"] == row["pattern"].lower(), row["rule"]
        assert not re.search(r"[+*]\)?[+*]", row["pattern"]), f"{row['rule']}: nested repetition can be slow"
        assert row["kind"] in {"", *Kind.__members__}
        re.compile(row["pattern"])
    assert {row["applies_to"] for row in rows} == {"category", "kernel", "host", "op"}
    assert [rule.rule for rule in rules("kernel")] == [row["rule"] for row in rows if row["applies_to"] == "kernel"]


@pytest.mark.parametrize(
    ("name", "kind", "rule", "op"),
    [
        ("gloo:all_reduce", Kind.COMM, "host-communication", "all_reduce"),
        ("MPI:send", Kind.COMM, "host-communication", "send"),
        ("c10d::allreduce_", Kind.CALL, "host-call", ""),
        ("record_param_comms", Kind.CALL, "host-call", ""),
    ],
)
def test_a_name_without_category_may_be_a_host_events(name: str, kind: Kind, rule: str, op: str) -> None:
    match = CLASSIFY.explain(name)
    assert (match.kind, match.rule, match.op, match.known) == (kind, rule, op, True)
    assert match.pattern and match.source
    # A category that is told decides alone, and what a kernel of that name counts as stays.
    assert CLASSIFY.explain(name, "kernel") == CLASSIFY.match("kernel", name)
    assert CLASSIFY.match("kernel", name).kind == Kind.COMPUTE
    assert Classifier(["all_?reduce|param|send"]).explain(name).rule == "user-1"


def test_users_patterns_see_the_head_of_a_name() -> None:
    mine = Classifier(["my_ring"])
    assert mine.kind("kernel", "x" * 4089 + "my_ring") == Kind.COMM
    assert mine.kind("kernel", "x" * 4090 + "my_ring") == Kind.COMPUTE
    assert mine.match("kernel", "x" * 4090 + "my_ring").rule == "kernel-default"


@given(st.lists(st.sampled_from(("a", "^a", "ab$", "^b$", "bb", "^ab")), min_size=1, max_size=3),
       st.text("ab:", max_size=5))  # fmt: skip
def test_plain_searches_find_what_regular_expressions_find(parts: list[str], text: str) -> None:
    pattern = "|".join(parts)
    assert is_plain(pattern)
    assert bool(search_of(pattern)(text)) == bool(re.search(pattern, text))
    assert bool(any_case(pattern)(text.upper())) == bool(re.search(pattern, text))


@pytest.mark.parametrize("pattern", ["a.b", "a?", "(a|b)", "a\\d", "[ab]", "a{2}", "a|", "^", "a$b"])
def test_what_is_no_plain_text_stays_a_regular_expression(pattern: str) -> None:
    assert not is_plain(pattern)
    for text in ("", "ab", "a.b", "axb", "a1", "aa", "b", "a$b"):
        assert bool(search_of(pattern)(text)) == bool(re.search(pattern, text))


def test_every_rule_finds_what_its_pattern_says() -> None:
    table = [rule for scope in ("category", "kernel", "host", "op") for rule in rules(scope)]
    words = {word for rule in table for part in rule.pattern.split("|") for word in (part, part.strip("^$"))}
    texts = {text for word in words for text in (word, f"x{word}", f"{word}x", f"_{word}_")}
    for rule in table:
        assert {text for text in texts if rule.search(text)} == {
            text for text in texts if re.search(rule.pattern, text)
        }
