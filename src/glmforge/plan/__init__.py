"""What a model and a run will cost, computed before anything is allocated. Never imports torch.

`stages`: the models that a stage of training takes, and what of them it trains. `counts`: parameters, FLOPs and bytes
of a model. `work`: what a rank computes and sends in a step. `machine`: what devices and links can do. `time`: how long
a step takes. `serving`: how much fits and how fast it generates.
"""
