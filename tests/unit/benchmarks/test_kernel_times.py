"""Kernels are told apart by their names, and what is between them is idle."""

import pytest
from gpu.kernel_times import kernel_times, kind_of, seconds_by_kind


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, true, false>", "attention"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape<...>>>",
            "grouped matmuls",
        ),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "dense matmuls"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "dense matmuls"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "other kernels"),
        ("void at::native::elementwise_kernel<128, 4, at::native::...>", "other kernels"),
    ],
)
def test_kinds(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_seconds_and_what_is_between_them() -> None:
    """1,000 us in which 300, 200 and 100 are worked; operators of the host do not count."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "nvjet_tst", "ts": 5000, "dur": 300},
        {"ph": "X", "cat": "kernel", "name": "flash_fwd_kernel", "ts": 5400, "dur": 200},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 5900, "dur": 100},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9000},
        {"ph": "M", "name": "process_name"},
    ]
    found = seconds_by_kind(events)
    assert found == pytest.approx(
        {"attention": 2e-4, "grouped matmuls": 0, "dense matmuls": 3e-4, "other kernels": 1e-4, "idle": 4e-4}
    )
    assert seconds_by_kind(events[3:]) == {}


def test_without_a_gpu_nothing_is_measured() -> None:
    ran = []
    assert kernel_times(lambda: ran.append(1)) == {}
    assert ran
