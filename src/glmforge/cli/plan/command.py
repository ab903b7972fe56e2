"""`glmforge plan`: what a run will do, and what its layout is and takes, before anything is launched."""

from glmforge.cli.plan.options import PlanOptions
from glmforge.cli.plan.views import read_question, show_answer
from glmforge.cli.signature import takes


@takes(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Show what a run will do and what its layout needs, before you launch it.

    Prints the phases of CONFIG and how it lies on that many GPUs; with --dry-run, what each kind of rank holds, needs
    and communicates; with --schedule, draws learning rate, batches, mixture and all else over tokens. Neither data nor
    a GPU is needed; where token shards exist, the schedule shows what is really drawn from them.

    With --gpu, answers whether the run fits that many of such GPUs, how long it takes, what it costs, and what its
    steps spend their time on; with --page, on a page as well, on which GPUs, network, batch and prices can be changed.

    With --cost, says what the whole run takes on GPUs of a kind (--gpu): predicted days, failures and the work that
    they undo, GPU-hours, energy, dollars, checkpoints on the disks. What is assumed for it is listed, and can be given.

    With --roofline, lists what a rank's step computes, operation by operation, with the least time that a GPU of that
    name (as the driver gives it, such as "NVIDIA H200") can take for it, and the time expected of eager torch, of
    compiled layers and of Triton's kernels. A GPU that is not known gets no times.

    Examples:

        glmforge plan configs/pretrain_glm45_355b.yaml --schedule schedule.html

        glmforge plan configs/pretrain_glm45_355b_guide.yaml --world-size 8192

        glmforge plan configs/pretrain_glm45_355b_guide.yaml parallel.tp=4 --world-size 8192 --rank 0 --dry-run

        glmforge plan configs/pretrain_glm45_air_106b.yaml --gpus 1024 --gpu h100-80gb --page plan.html

        glmforge plan configs/small_1b.yaml --roofline "NVIDIA H200"

        glmforge plan configs/scaled_down_64gpu.yaml --gpus 64 --gpu "H100 SXM" --cost --price 2.50

        glmforge plan configs/pretrain_glm45_355b_guide.yaml --sheet guide

        glmforge plan configs/scaled_down_64gpu.yaml --world-size 64 --lora rank=16,target=self_attn+experts

        glmforge plan configs/pretrain_glm46_355b.yaml --serve --gpus 8 --gpu "H200 SXM" --weights fp8
    """
    show_answer(read_question(options))
