"""The optimizers behind one interface, gradient clipping, the learning-rate schedule and the routers' balance.

Import from the modules: the schedule is arithmetic that `glmforge plan` needs without torch, the others are torch's.
"""
