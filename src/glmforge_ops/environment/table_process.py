"""Variables of one process and its node: CUDA, allocator, OpenMP, pinning, caches, tokenizers, logging."""

from glmforge.runtime.cores import SPIN_COUNT
from glmforge_ops.environment.variable import Variable

_CUDA = "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
_CUBLAS = "https://docs.nvidia.com/cuda/cublas/index.html"
_TORCH_CUDA = "https://docs.pytorch.org/docs/stable/cuda_environment_variables.html"
_TORCH_THREADS = "https://docs.pytorch.org/docs/stable/threading_environment_variables.html"
_INDUCTOR = "https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html"
_EXTENSIONS = "https://docs.pytorch.org/docs/stable/cpp_extension.html"
_TRITON = "https://github.com/triton-lang/triton"
_LIBGOMP = "https://gcc.gnu.org/onlinedocs/libgomp/Environment-Variables.html"
_HUB = "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables"
_TOKENIZERS = "https://github.com/huggingface/tokenizers"
_SRUN = "https://slurm.schedmd.com/srun.html"
_PYTHON = "https://docs.python.org/3/using/cmdline.html"

ROWS: tuple[Variable, ...] = (
    Variable(
        name="CUDA_DEVICE_ORDER",
        group="CUDA",
        value="PCI_BUS_ID",
        default="FASTEST_FIRST",
        meaning="Numbers GPUs as nvidia-smi does, so that a GPU named in a log is the one that is looked at.",
        change="Leave it.",
        source=_CUDA,
    ),
    Variable(
        name="CUDA_VISIBLE_DEVICES",
        group="CUDA",
        default="all GPUs of the node",
        meaning="GPUs that a process sees, renumbered from 0.",
        change="Leave it to Slurm: each rank sees all GPUs of its node and takes the one of its LOCAL_RANK.",
        source=_CUDA,
    ),
    Variable(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        group="CUDA",
        default="8",
        meaning="Queues of work from host to GPU. With 1, kernels start in the order in which they were issued.",
        change="Leave it with FSDP, whose copies and collectives need queues of their own; Megatron asks for 1 with "
        "tensor parallelism on GPUs before Blackwell.",
        source=_CUDA,
    ),
    Variable(
        name="CUDA_LAUNCH_BLOCKING",
        group="CUDA",
        default="0",
        meaning="Wait for each kernel before the next is issued.",
        change="1, for a run that is to show which kernel fails; it is many times slower.",
        source=_CUDA,
    ),
    Variable(
        name="NVIDIA_TF32_OVERRIDE",
        group="CUDA",
        default="the program decides",
        meaning="0 forbids and 1 forces TF32 in every matrix product of NVIDIA's libraries.",
        change="Leave it: 1 also rounds the products that are fp32 on purpose, the router's above all.",
        source=_CUBLAS,
    ),
    Variable(
        name="CUBLAS_WORKSPACE_CONFIG",
        group="CUDA",
        default="the library decides",
        meaning="Workspace of cuBLAS.",
        change="`:4096:8` where sums have to come out equal bit by bit from run to run.",
        source=_CUBLAS,
    ),
    Variable(
        name="PYTORCH_ALLOC_CONF",
        group="allocator",
        value="expandable_segments:True",
        default="segments of fixed size",
        meaning="Lets the caching allocator's segments grow, so that changing shapes (experts, packed rows) leave "
        "fewer holes.",
        change="Leave it out with what registers memory by itself and fails with it (some versions of RDMA plugins, "
        "CUDA IPC). PYTORCH_CUDA_ALLOC_CONF is its old name.",
        source=_TORCH_CUDA,
    ),
    Variable(
        name="OMP_NUM_THREADS",
        group="OpenMP",
        found="threads",
        default="all cores for every rank; torchrun sets 1",
        meaning="Threads of each rank for work on the CPU: offloaded optimizers, data, checkpoints.",
        change="1 where ranks do nothing on the CPU, more where the optimizer is offloaded.",
        source=_TORCH_THREADS,
    ),
    Variable(
        name="MKL_NUM_THREADS",
        group="OpenMP",
        default="OMP_NUM_THREADS",
        meaning="Threads of Intel's MKL; wins over OMP_NUM_THREADS.",
        change="Leave it: one number for both.",
        source=_TORCH_THREADS,
    ),
    Variable(
        name="GOMP_SPINCOUNT",
        group="OpenMP",
        value=SPIN_COUNT,
        by_glmforge=True,
        default="300,000",
        meaning="Rounds that a thread of libgomp waits busily for its team before it sleeps.",
        change="More on cores that no other process wants; OMP_WAIT_POLICY says the same for any OpenMP.",
        source=_LIBGOMP,
    ),
    Variable(
        name="KMP_BLOCKTIME",
        group="OpenMP",
        value="0",
        by_glmforge=True,
        default="200 ms",
        meaning="The same, in milliseconds, for a PyTorch built with Intel's OpenMP.",
        change="As GOMP_SPINCOUNT.",
        source="https://www.intel.com/content/www/us/en/docs/dpcpp-cpp-compiler/developer-guide-reference/current/"
        "supported-environment-variables.html",
    ),
    Variable(
        name="OMP_PROC_BIND",
        group="pinning",
        default="false: the kernel places threads",
        meaning="Binds threads of OpenMP to cores.",
        change="Only where each rank is bound to cores of its own (srun --cpus-per-task, torchrun --numa-binding): "
        "without that, all ranks of a node bind to the same first cores.",
        source=_LIBGOMP,
    ),
    Variable(
        name="NCCL_IGNORE_CPU_AFFINITY",
        group="pinning",
        default="0",
        meaning="Whether NCCL's threads leave the cores that the process was given for those near the GPU.",
        change="1 where the launcher binds ranks to the wrong socket and cannot be told better.",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    Variable(
        name="SRUN_CPUS_PER_TASK",
        group="pinning",
        default="1: since Slurm 22.05 srun does not take --cpus-per-task from the job",
        meaning="Cores that srun gives each task; with one, all threads of a rank share it.",
        change="`$SLURM_CPUS_PER_TASK` in the batch script, before srun (examples/slurm/pretrain.sbatch).",
        source=_SRUN,
    ),
    Variable(
        name="TRITON_CACHE_DIR",
        group="caches",
        found="cache",
        default="~/.triton/cache",
        meaning="Kernels that Triton compiled. A home directory on NFS is read and written by all ranks at once.",
        change="A directory that outlives the job, on a disk of the node, saves compiling again.",
        source=_TRITON,
    ),
    Variable(
        name="TORCHINDUCTOR_CACHE_DIR",
        group="caches",
        found="cache",
        default="torchinductor_USER in the temporary directory",
        meaning="Kernels and graphs that torch.compile made.",
        change="As TRITON_CACHE_DIR.",
        source=_INDUCTOR,
    ),
    Variable(
        name="TORCH_EXTENSIONS_DIR",
        group="caches",
        found="cache",
        default="~/.cache/torch_extensions",
        meaning="Extensions compiled at run time (DeepSpeed's). On a shared home a killed build leaves a lock on which "
        "all later jobs wait.",
        change="As TRITON_CACHE_DIR.",
        source=_EXTENSIONS,
    ),
    Variable(
        name="CUDA_CACHE_PATH",
        group="caches",
        found="cache",
        default="~/.nv/ComputeCache",
        meaning="Machine code that the driver compiled from PTX.",
        change="As TRITON_CACHE_DIR.",
        source=_CUDA,
    ),
    Variable(
        name="HF_HOME",
        group="caches",
        default="~/.cache/huggingface",
        meaning="Models, tokenizers and data sets from Hugging Face's hub, and the token for it.",
        change="A directory on shared storage: what one node fetched, all have.",
        source=_HUB,
    ),
    Variable(
        name="HF_HUB_OFFLINE",
        group="caches",
        default="0",
        meaning="Take from the cache what is there and ask the hub for nothing.",
        change="1 on nodes without a way out, where each question waits for its time limit.",
        source=_HUB,
    ),
    Variable(
        name="TOKENIZERS_PARALLELISM",
        group="tokenizers",
        value="false",
        default="true, until a process that used it forks",
        meaning="Threads of Hugging Face's tokenizers: a thread per core in each of many worker processes is too many.",
        change="true to train a tokenizer, in one process.",
        source=_TOKENIZERS,
    ),
    Variable(
        name="PYTHONUNBUFFERED",
        group="logging",
        value="1",
        default="output to a file is kept back until a block is full",
        meaning="Lines appear in the job's log when they are written, also the last ones of a rank that is killed.",
        change="Leave it.",
        source=_PYTHON,
    ),
    Variable(
        name="TORCH_CPP_LOG_LEVEL",
        group="logging",
        default="WARNING",
        meaning="How much the C++ part of PyTorch says.",
        change="INFO to see how process groups and their stores connect.",
        source="https://docs.pytorch.org/docs/stable/distributed.html",
    ),
)
