"""placeholder until the grammar lands"""
def render_block(paths, summary):
    inner = "".join(f"<Path>{p}</Path>" for p in paths)
    return f"<Parallel>{inner}</Parallel>\n<Summary>{summary}</Summary>"
