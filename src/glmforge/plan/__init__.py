"""What a model and a run will cost, computed before anything is allocated. Never imports torch.

`stages`: which models a stage trains, and what of them. `counts`: parameters, FLOPs and bytes of a model. `work`: what a rank computes and sends in a step. `machine`: what
devices and links can do. `time`: how long a step takes.
"""
