"""The transport to real hosts: parcels as NVIDIA FLARE tasks, with mutual TLS and site-owned policy.

The round loop stays in the process of `fedvisage run`, on the server's host. A FLARE job is a disposable session: its
controller (`controller.Relay`) passes bytes on between that process and the sites, and keeps nothing. When a job dies,
the transport submits another and asks again those parties whose answer is missing; they start from the state that the
server accepted last, so the result has the same bits. Nothing here is pickled, and no job carries code: a job is three
JSON files that name classes of this package, which every site has installed.

This package imports NVFlare only in the modules that run inside it, so that everything else works without the extra;
and what the controller needs (`wire`, `body`, `link`, `courier`) imports no PyTorch.
"""
